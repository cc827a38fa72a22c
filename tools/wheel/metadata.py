# SPDX-License-Identifier: Apache-2.0
"""The wheel's metadata: METADATA, WHEEL, entry points and rtp_llm/_build.json."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

NAME = "rtp-llm"
MODULE = "rtp_llm"
REQUIRES_PYTHON = ">=3.11,<3.14"
# From the oldest torch with the stable ABI of the operator library to the latest one tested.
TORCH_RANGE = ">=2.11,<2.14"
# Extra packages of `pip install 'rtp-llm[NAME]'`; code that needs a missing one says so.
EXTRAS = {"ray": ("ray[client]>=2.40,<3",)}

SUMMARY = "LLM inference engine: an OpenAI-compatible server, a Python library, and kernels"
KEYWORDS = ("llm", "inference", "serving", "openai", "paged-attention", "continuous-batching")
CLASSIFIERS = (
    "Development Status :: 4 - Beta",
    "Environment :: Console",
    "Environment :: GPU",
    "Environment :: GPU :: NVIDIA CUDA",
    "Intended Audience :: Developers",
    "Intended Audience :: Science/Research",
    "Operating System :: POSIX :: Linux",
    "Programming Language :: C++",
    "Programming Language :: Python :: 3",
    "Programming Language :: Python :: 3.11",
    "Programming Language :: Python :: 3.12",
    "Programming Language :: Python :: 3.13",
    "Topic :: Scientific/Engineering :: Artificial Intelligence",
    "Typing :: Typed",
)
_HOME = "https://github.com/alibaba/rtp-llm"
URLS = {
    "Homepage": _HOME,
    "Source": _HOME,
    "Documentation": f"{_HOME}/tree/main/docs",
    "Issues": f"{_HOME}/issues",
}

_PIN = re.compile(r"^([A-Za-z0-9][\w.-]*)===?([^\s;\\]+)", re.MULTILINE)


@dataclass(frozen=True)
class Selection:
    """Packages that a device's wheel leaves out or requires under another name."""

    excluded: tuple[str, ...] = ()  # patterns such as nvidia-*
    renamed: Mapping[str, str] = field(default_factory=dict)  # triton -> triton-xpu

    def excludes(self, name: str) -> bool:
        return any(fnmatch.fnmatchcase(canonical(name), pattern) for pattern in self.excluded)

    def apply(self, wanted: Requirement) -> Requirement | None:
        """The requirement as this device has it, or None. Extras and markers stay.

        A new name with a version of its own ("triton-xpu==3.7.2") brings that version; without one
        the wanted version stays.
        """
        chosen = Requirement(str(wanted))
        if new := self.renamed.get(canonical(wanted.name)):
            chosen.name = Requirement(new).name
            chosen.specifier = Requirement(new).specifier or wanted.specifier
        return None if self.excludes(chosen.name) else chosen


def requirements(wanted: Iterable[Path], lock: Path, selection: Selection) -> list[str]:
    """Requires-Dist: the ranges of the `wanted` files (.in), which `lock` lies in; and torch's.

    KeyError when the lock has no pin for one of them; ValueError when its pin does not fit, or
    when a range is open on one side.
    """
    pins = pins_of(lock)
    lines = []
    for requirement in map(selection.apply, wanted_by(wanted)):
        if requirement is None:
            continue
        pin = pins[canonical(requirement.name)]
        if not requirement.specifier.contains(pin, prereleases=True):
            raise ValueError(f"{lock} has {requirement.name} {pin}, which is not {requirement}")
        if not _is_bounded(requirement.specifier):
            raise ValueError(f"{requirement}: give a tested lower and an upper bound")
        lines.append(str(requirement))
    return [*lines, f"torch{TORCH_RANGE}"]


def extra_requirements() -> list[str]:
    """Return the Requires-Dist lines of all extras."""
    return [f'{line}; extra == "{name}"' for name, own in EXTRAS.items() for line in own]


def _is_bounded(specifier: SpecifierSet) -> bool:
    operators = {clause.operator for clause in specifier}
    exact = bool(operators & {"==", "===", "~="})
    return exact or bool(operators & {">", ">="} and operators & {"<", "<="})


def wanted_by(files: Iterable[Path]) -> list[Requirement]:
    """The packages that .in files name, without torch: it has a range instead of a pin."""
    lines = [line.partition(" #")[0].strip() for file in files for line in _lines(file)]
    found = [Requirement(line) for line in lines if line and not line.startswith(("#", "-"))]
    return [requirement for requirement in found if canonical(requirement.name) != "torch"]


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines()


def pins_of(lock: Path) -> dict[str, str]:
    """Canonical name -> version of every package in a lock."""
    return {canonical(name): version for name, version in _PIN.findall(lock.read_text())}


def canonical(name: str) -> str:
    """Return the normalised form of a package's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def source_version(init: Path) -> str:
    """`__version__` of the package, without importing it."""
    found = re.search(r'^__version__ = "([^"]+)"$', init.read_text(), re.MULTILINE)
    if not found:
        raise ValueError(f"{init} has no __version__")
    return found.group(1)


def metadata(version: str, requires: list[str], description: str) -> str:
    """Text of METADATA; `description` is the README, in Markdown."""
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {NAME}",
        f"Version: {version}",
        f"Summary: {SUMMARY}",
        "License-Expression: Apache-2.0",
        "License-File: LICENSE",
        f"Keywords: {','.join(KEYWORDS)}",
        *(f"Classifier: {line}" for line in CLASSIFIERS),
        *(f"Project-URL: {name}, {address}" for name, address in URLS.items()),
        f"Requires-Python: {REQUIRES_PYTHON}",
        *(f"Requires-Dist: {line}" for line in [*requires, *extra_requirements()]),
        *(f"Provides-Extra: {name}" for name in EXTRAS),
        "Description-Content-Type: text/markdown",
    ]
    return "\n".join(lines) + "\n\n" + description


def wheel(tag: str) -> str:
    """Return the text of the WHEEL file."""
    lines = ["Wheel-Version: 1.0", "Generator: rtp-llm", "Root-Is-Purelib: false", f"Tag: {tag}"]
    return "\n".join(lines) + "\n"


def entry_points() -> str:
    """Return the text of entry_points.txt."""
    return f"[console_scripts]\nrtp-llm = {MODULE}.__main__:main\n"


def build_record(device: str, targets: list[str], schema_hash: str, commit: str) -> str:
    """Text of rtp_llm/_build.json: what the running package knows about its own build."""
    record = {
        "commit": commit,
        "device": device,
        "schema_hash": schema_hash,
        "targets": targets,
        "torch": TORCH_RANGE,
    }
    return json.dumps(record, indent=2, sort_keys=True) + "\n"
