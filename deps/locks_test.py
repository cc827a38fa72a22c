"""The locks agree with one another, with what the wheel asks for and with what is installed."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tools.wheel import metadata

DEPS = Path("deps")
LOCKS = sorted(DEPS.glob("requirements_*.txt"))
RUNTIME = [lock for lock in LOCKS if lock.stem not in ("requirements_dev", "requirements_sycl")]


def _wanted(name: str) -> list[Requirement]:
    lines = (DEPS / name).read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith(("#", "-"))]


def test_locks_are_here() -> None:
    names = {lock.stem for lock in LOCKS}
    assert {"requirements_cpu", "requirements_cpu_pypi", "requirements_dev"} <= names
    assert "requirements_sycl" in names


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_every_pin_is_hashed(lock: Path) -> None:
    entries = re.split(r"\n(?=[a-z0-9])", lock.read_text())
    pins = [entry for entry in entries if re.match(r"[a-z0-9][\w.-]*==", entry)]
    assert pins
    assert not [entry for entry in pins if "--hash=sha256:" not in entry]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_names_no_machine(lock: Path) -> None:
    assert not re.search(r"://|-c /|-r /|--output-file=/", lock.read_text())


@pytest.mark.parametrize("lock", RUNTIME, ids=lambda lock: lock.stem)
def test_lock_satisfies_the_metadata(lock: Path) -> None:
    pins = metadata.pins_of(lock)
    for line in metadata.requirements(DEPS / "requirements_base.in", lock):
        requirement = Requirement(line)
        assert requirement.specifier.contains(pins[metadata.canonical(requirement.name)])
    for requirement in _wanted("requirements_base.in"):
        assert requirement.specifier.contains(pins[metadata.canonical(requirement.name)])


def test_common_packages_have_equal_pins() -> None:
    """torch is the one that differs between devices."""
    pins: dict[str, set[str]] = {}
    for lock in LOCKS:
        for name, version in metadata.pins_of(lock).items():
            pins.setdefault(name, set()).add(version)
    assert {name: versions for name, versions in pins.items() if len(versions) > 1} == {
        "torch": {"2.13.0", "2.13.0+cpu"}
    }


def test_what_is_installed_is_what_is_locked() -> None:
    pins = metadata.pins_of(DEPS / "requirements_cpu.txt")
    pins |= metadata.pins_of(DEPS / "requirements_dev.txt")
    installed = {name: importlib.metadata.version(name) for name in pins}
    torch = installed.pop("torch")
    assert installed == {name: version for name, version in pins.items() if name != "torch"}
    assert SpecifierSet(metadata.TORCH_RANGE).contains(torch)
