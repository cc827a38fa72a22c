# SPDX-License-Identifier: Apache-2.0
"""Environments of this checkout: .venv/ for the wheel, .clients/ and .ray/ for libraries of soak
tests.

Each has the packages of its lock and, in .venv/, the wheel; nothing else.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from tools.dev.linking import link_packages
from tools.dev.steps import ROOT, run, say

_REMEDY = (
    "check the network and pip's configuration (pip config list), then run the same command again"
)


@dataclass(frozen=True)
class _Environment:
    """A virtual environment, and a stamp of what is in it."""

    folder: Path

    @property
    def commands(self) -> Path:
        return self.folder / "bin"

    @property
    def packages(self) -> Path:
        (folder,) = self.folder.glob("lib/python3*/site-packages")
        return folder

    @property
    def _stamp(self) -> Path:
        return self.folder / "installed.json"

    def installed(self) -> dict[str, str]:
        """The content of its stamp; empty if the environment is incomplete."""
        try:
            stamp: dict[str, str] = json.loads(self._stamp.read_text())
        except (OSError, ValueError):
            return {}
        return stamp if (self.commands / "python").exists() else {}

    def begin(self) -> None:
        """Mark the environment as incomplete until it is stamped again."""
        self._stamp.unlink(missing_ok=True)

    def stamp(self, what: dict[str, str]) -> None:
        self._stamp.write_text(json.dumps(what))

    def create(self, lock: Path) -> None:
        """Recreate the environment with the packages of the lock."""
        self._clear()
        self.pip("--require-hashes", "-r", str(lock))

    def link(self, lock: Path, packages: Path) -> None:
        """Recreate the environment with the lock's packages, linked from the folder `packages`."""
        self._clear("--without-pip")
        link_packages(lock, packages, self.packages)

    def _clear(self, *options: str) -> None:
        command = [os.environ["RTP_LLM_PYTHON"], "-m", "venv", "--clear", *options]
        run([*command, str(self.folder)], remedy=_REMEDY, shown=False)

    def pip(self, *arguments: str) -> None:
        pip = [str(self.commands / "python"), "-m", "pip", "install", "-qq", "--only-binary=:all:"]
        quiet = {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        run([*pip, *arguments], remedy=_REMEDY, env=quiet, shown=False)


FOLDER = ROOT / ".venv"
_VENV = _Environment(FOLDER)
_CLIENTS = _Environment(ROOT / ".clients")
_CLIENTS_LOCK = ROOT / "deps" / "requirements_clients.txt"
_RAY = _Environment(ROOT / ".ray")
_RAY_LOCK = ROOT / "deps" / "requirements_ray.txt"


def install(wheel: Path, packages: Path) -> Path:
    """Brings .venv/ up to `wheel` and to its lock; returns the folder of its commands.

    `packages` is Bazel's repository of the device's packages: the lock that it took, and its
    environment, which has tools for building and testing, too.
    """
    lock = packages / "runtime_lock.txt"
    wanted = _wanted(lock) | {"wheel": _digest(wheel)}
    present = _VENV.installed()
    if present == wanted:
        return _VENV.commands
    _VENV.begin()
    if not _wanted(lock).items() <= present.items():
        say("linking the packages of the lock into .venv")
        _VENV.link(lock, packages / "site-packages")
    say(f"installing {wheel.name} into .venv")
    _VENV.pip("--no-deps", "--no-index", "--force-reinstall", str(wheel))
    _VENV.stamp(wanted)
    return _VENV.commands


def install_clients() -> Path:
    """Brings .clients/ up to its lock; returns its interpreter."""
    _bring_up(_CLIENTS, _CLIENTS_LOCK, "the client libraries (about a minute, 700 MB)")
    return _CLIENTS.commands / "python"


def install_ray() -> Path:
    """Brings .ray/ up to its lock; returns the folder of its packages."""
    _bring_up(_RAY, _RAY_LOCK, "Ray (about a minute, 300 MB)")
    return _RAY.packages


def _bring_up(environment: _Environment, lock: Path, what: str) -> None:
    wanted = _wanted(lock)
    if environment.installed() != wanted:
        say(f"installing {what} into {environment.folder.name}")
        environment.begin()
        environment.create(lock)
        environment.stamp(wanted)


def _wanted(lock: Path) -> dict[str, str]:
    return {"python": os.environ["RTP_LLM_PYTHON"], "lock": _digest(lock)}


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
