"""What the wheel says about itself: METADATA, WHEEL, entry points and rtp_llm/_build.json."""

from __future__ import annotations

import json
import re
from pathlib import Path

NAME = "rtp-llm"
MODULE = "rtp_llm"
REQUIRES_PYTHON = ">=3.11,<3.14"
# The oldest torch that has the stable ABI of the operator library, to the last one tried.
TORCH_RANGE = ">=2.11,<2.14"

_PIN = re.compile(r"^([A-Za-z0-9][\w.-]*)===?([^\s;\\]+)", re.MULTILINE)


def requirements(wanted: Path, lock: Path) -> list[str]:
    """Requires-Dist: the packages that `wanted` (an .in file) names, pinned by `lock`; and torch.

    KeyError when the lock has no pin for one of them.
    """
    pins = pins_of(lock)
    lines = [line.partition("#")[0].strip() for line in wanted.read_text().splitlines()]
    names = [re.split(r"[\s<>=!~\[;]", line)[0] for line in lines if line]
    pinned = [f"{name}=={pins[canonical(name)]}" for name in names]
    return [*pinned, f"torch{TORCH_RANGE}"]


def pins_of(lock: Path) -> dict[str, str]:
    """Canonical name -> version of every package in a lock."""
    return {canonical(name): version for name, version in _PIN.findall(lock.read_text())}


def canonical(name: str) -> str:
    """The form in which two spellings of a package's name are equal (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def source_version(init: Path) -> str:
    """`__version__` of the package, without importing it."""
    found = re.search(r'^__version__ = "([^"]+)"$', init.read_text(), re.MULTILINE)
    if not found:
        raise ValueError(f"{init} has no __version__")
    return found.group(1)


def metadata(version: str, requires: list[str]) -> str:
    """Text of METADATA."""
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {NAME}",
        f"Version: {version}",
        "Summary: LLM inference engine: an OpenAI server, a Python library, operators and kernels",
        "License-Expression: Apache-2.0",
        "License-File: LICENSE",
        f"Requires-Python: {REQUIRES_PYTHON}",
        *(f"Requires-Dist: {line}" for line in requires),
    ]
    return "\n".join(lines) + "\n"


def wheel(tag: str) -> str:
    """Text of WHEEL."""
    lines = ["Wheel-Version: 1.0", "Generator: rtp-llm", "Root-Is-Purelib: false", f"Tag: {tag}"]
    return "\n".join(lines) + "\n"


def entry_points() -> str:
    """Text of entry_points.txt."""
    return f"[console_scripts]\nrtp-llm = {MODULE}.cli:main\n"


def build_record(device: str, schema_hash: str, commit: str) -> str:
    """Text of rtp_llm/_build.json: what the running package knows about its own build."""
    record = {
        "commit": commit,
        "device": device,
        "schema_hash": schema_hash,
        "torch": TORCH_RANGE,
    }
    return json.dumps(record, indent=2, sort_keys=True) + "\n"
