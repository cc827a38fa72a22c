""".venv/: the locked run-time packages and the wheel, nothing else."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from tools.dev.steps import ROOT, run, say

FOLDER = ROOT / ".venv"
_STAMP = FOLDER / "installed.json"
_REMEDY = (
    "check the network and pip's configuration (pip config list), then run the same command again"
)


def install(wheel: Path, packages: Path) -> Path:
    """Brings .venv/ up to `wheel` and to its lock; returns the folder of its commands.

    `packages` is Bazel's repository of the device's packages: which lock it took, and from where.
    """
    wanted = {
        "python": os.environ["RTP_LLM_PYTHON"],
        "lock": _digest(packages / "runtime_lock.txt"),
        "wheel": _digest(wheel),
    }
    present = _installed()
    if present == wanted:
        return FOLDER / "bin"
    _STAMP.unlink(missing_ok=True)
    if (present.get("python"), present.get("lock")) != (wanted["python"], wanted["lock"]):
        _install_packages(packages / "runtime_lock.txt", (packages / "torch_index.txt").read_text())
    say(f"installing {wheel.name} into .venv")
    _pip("--no-deps", "--no-index", "--force-reinstall", str(wheel))
    _STAMP.write_text(json.dumps(wanted))
    return FOLDER / "bin"


def _install_packages(lock: Path, torch_index: str) -> None:
    say("installing the packages of the lock into .venv (about a minute, 1 GB)")
    create = [os.environ["RTP_LLM_PYTHON"], "-m", "venv", "--clear", str(FOLDER)]
    run(create, remedy=_REMEDY, shown=False)
    index = ["--extra-index-url", torch_index] if torch_index else []
    _pip(*index, "--require-hashes", "-r", str(lock))


def _pip(*arguments: str) -> None:
    pip = [
        str(FOLDER / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "-qq",
        "--only-binary",
        ":all:",
    ]
    quiet = {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    run([*pip, *arguments], remedy=_REMEDY, env=quiet, shown=False)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _installed() -> dict[str, str]:
    try:
        stamp: dict[str, str] = json.loads(_STAMP.read_text())
    except (OSError, ValueError):
        return {}
    return stamp if (FOLDER / "bin" / "python").exists() else {}
