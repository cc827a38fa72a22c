# SPDX-License-Identifier: Apache-2.0
"""Locks agree with their inputs, with one another, with the wheels and with what is installed."""

from __future__ import annotations

import importlib.metadata
import json
import re
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tools.dev import lock as dev_lock
from tools.dev import wheel as dev_wheel
from tools.wheel import metadata

DEPS = Path("deps")
LOCKS = sorted(DEPS.glob("requirements_*.txt"))
TABLE: dict[str, dict[str, Any]] = json.loads(Path("arch_config/devices.json").read_text())


def _file(label: str) -> Path:
    return Path(label.removeprefix("//").replace(":", "/"))


# Every lock that a wheel is made from: (device, file).
DEVICE_LOCKS = [
    (device, _file(row[name]))
    for device, row in TABLE.items()
    for name in ("lock", "aarch64_lock")
    if row[name]
]
each_device_lock = pytest.mark.parametrize(
    ("device", "lock"), DEVICE_LOCKS, ids=lambda value: str(getattr(value, "stem", value))
)


def _wanted(path: Path) -> list[Requirement]:
    """What an input file and those that it includes ask for."""
    found = []
    for line in path.read_text().splitlines():
        if line.startswith("-r "):
            found += _wanted(path.parent / line.split()[1])
        elif line and not line.startswith(("#", "-")):
            found.append(Requirement(line))
    return found


def test_every_lock_has_its_input_and_its_use() -> None:
    used = {lock for _, lock in DEVICE_LOCKS}
    used |= {_file(row["fallback_lock"]) for row in TABLE.values() if row["fallback_lock"]}
    used |= {DEPS / f"requirements_{name}.txt" for name in ("clients", "dev", "ray", "sycl")}
    assert used == set(LOCKS)
    inputs = {lock.with_name(lock.name.replace("_aarch64", "")) for lock in LOCKS}
    assert {path.with_suffix(".in").exists() for path in inputs} == {True}


def test_dev_knows_the_devices() -> None:
    assert sorted(dev_wheel.DEVICES) == sorted(TABLE)
    assert sorted(dev_lock.NAMES) == sorted([*TABLE, "clients", "ray", "sycl"])
    elsewhere = {device for device, row in TABLE.items() if row["torch_index"]} - {"cpu"}
    assert set(dev_lock._TORCH_ELSEWHERE) == elsewhere


def test_dev_and_the_rule_call_pip_tools_alike() -> None:
    """compile_pip_requirements adds three options by itself."""
    build = (DEPS / "BUILD").read_text()
    (given,) = re.findall(r"extra_args = \[\n(.*?)\n    \]", build, re.DOTALL)
    options = set(re.findall(r'"(--[\w-]+)"', given))
    assert options | {"--allow-unsafe", "--generate-hashes"} == set(dev_lock._PIP_TOOLS_OPTIONS)
    assert "\"--pip-args='--only-binary :all:'\"" in given


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_every_pin_is_hashed(lock: Path) -> None:
    entries = re.split(r"\n(?=[a-z0-9])", lock.read_text())
    pins = [entry for entry in entries if re.match(r"[a-z0-9][\w.-]*==", entry)]
    assert pins
    assert not [entry for entry in pins if "--hash=sha256:" not in entry]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_names_no_machine(lock: Path) -> None:
    assert not re.search(r"://|-c /|-r /|--output-file=/", lock.read_text())


@pytest.mark.parametrize("name", ["clients", "cpu", "cuda", "dev", "ray", "rocm", "sycl", "xpu"])
def test_lock_satisfies_its_input(name: str) -> None:
    missing_torch = name in TABLE and not TABLE[name]["lock_has_torch"]
    pins = metadata.pins_of(DEPS / f"requirements_{name}.txt")
    for requirement in _wanted(DEPS / f"requirements_{name}.in"):
        package = metadata.canonical(requirement.name)
        if package == "torch" and missing_torch:
            continue
        assert requirement.specifier.contains(pins[package], prereleases=True), requirement


@each_device_lock
def test_torch_is_the_devices(device: str, lock: Path) -> None:
    row, pins = TABLE[device], metadata.pins_of(lock)
    assert pins.get("torch") == (row["torch"] if row["lock_has_torch"] else None)
    assert SpecifierSet(metadata.TORCH_RANGE).contains(row["torch"])
    (wanted,) = [
        requirement
        for requirement in _wanted(DEPS / f"requirements_{device}.in")
        if requirement.name == "torch"
    ]
    assert wanted.specifier.contains(row["torch"])


@each_device_lock
def test_no_package_of_another_device(device: str, lock: Path) -> None:
    selection = metadata.Selection(tuple(TABLE[device]["excluded"]))
    assert not [name for name in metadata.pins_of(lock) if selection.excludes(name)]


def test_the_patterns_know_what_only_cuda_has() -> None:
    """What the CUDA lock has and the CPU's has not is excluded from every other device's wheel."""
    cpu, cuda = (metadata.pins_of(DEPS / f"requirements_{name}.txt") for name in ("cpu", "cuda"))
    assert len(cuda.keys() - cpu.keys()) > 10
    for device in TABLE.keys() - {"cuda"}:
        selection = metadata.Selection(tuple(TABLE[device]["excluded"]))
        assert not [name for name in cuda.keys() - cpu.keys() if not selection.excludes(name)]


@each_device_lock
def test_the_wheel_asks_for_what_is_locked(device: str, lock: Path) -> None:
    row, pins = TABLE[device], metadata.pins_of(lock)
    wanted = [DEPS / "requirements_base.in", DEPS / f"requirements_{device}.in"]
    selection = metadata.Selection(tuple(row["excluded"]), row["renamed"])
    *lines, torch = [Requirement(text) for text in metadata.requirements(wanted, lock, selection)]
    assert str(torch.specifier) == str(SpecifierSet(metadata.TORCH_RANGE))
    asked = {metadata.canonical(line.name): line.specifier for line in lines}
    assert all(asked[name].contains(pins[name]) for name in asked)
    assert all({clause.operator for clause in asked[name]} == {">=", "<"} for name in asked)
    assert {"fastapi", "msgspec", "numpy", "pyzmq", "tokenizers"} <= asked.keys()


def test_common_packages_have_equal_pins() -> None:
    """torch is the one that differs between devices; client libraries and Ray are apart."""
    pins: dict[str, set[str]] = {}
    apart = {DEPS / f"requirements_{name}.txt" for name in ("clients", "ray")}
    for lock in set(LOCKS) - apart:
        for name, version in metadata.pins_of(lock).items():
            pins.setdefault(name, set()).add(version)
    torch = {row["torch"] for row in TABLE.values() if row["lock_has_torch"]}
    assert {name: versions for name, versions in pins.items() if len(versions) > 1} == {
        "torch": torch
    }


def test_what_is_installed_is_what_is_locked() -> None:
    pins = metadata.pins_of(DEPS / "requirements_cpu.txt")
    pins |= metadata.pins_of(DEPS / "requirements_dev.txt")
    installed = {name: importlib.metadata.version(name) for name in pins}
    torch = installed.pop("torch")
    assert installed == {name: version for name, version in pins.items() if name != "torch"}
    assert SpecifierSet(metadata.TORCH_RANGE).contains(torch)
