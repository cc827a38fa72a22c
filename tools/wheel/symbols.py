# SPDX-License-Identifier: Apache-2.0
"""Which manylinux platform a set of shared objects needs, from their versioned symbols."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

Version = tuple[int, ...]

# The newest symbols of the libstdc++ shipped with each glibc, as in PEP 600: manylinux_2_X
# promises the C++ symbols of the distributions that have glibc 2.X.
_NEWEST_GLIBCXX: dict[int, Version] = {
    17: (3, 4, 19),
    24: (3, 4, 22),
    27: (3, 4, 24),
    28: (3, 4, 25),
    31: (3, 4, 28),
    34: (3, 4, 29),
    35: (3, 4, 30),
    37: (3, 4, 31),
    38: (3, 4, 32),
    39: (3, 4, 33),
    41: (3, 4, 34),
}
_NEWEST_CXXABI: dict[int, Version] = {
    17: (1, 3, 7),
    24: (1, 3, 10),
    27: (1, 3, 11),
    31: (1, 3, 12),
    34: (1, 3, 13),
    38: (1, 3, 14),
    39: (1, 3, 15),
}
_MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}


@dataclass(frozen=True)
class SharedObject:
    """The contents of a shared object's headers."""

    machine: str
    needed: tuple[str, ...] = ()
    run_path: tuple[str, ...] = ()
    versions: frozenset[str] = frozenset()  # GLIBC_2.34, GLIBCXX_3.4.30, ...
    undefined: frozenset[str] = frozenset()  # symbols that the needed libraries have to bring
    sections: frozenset[str] = frozenset()  # those that hold something


def read(path: Path) -> SharedObject:
    """Reads an ELF file; ValueError for a machine that has no manylinux name here."""
    with path.open("rb") as stream:
        elf = ELFFile(stream)
        machine = elf["e_machine"]
        if machine not in _MACHINES:
            raise ValueError(f"{path}: no platform name for {machine}")
        dynamic = elf.get_section_by_name(".dynamic")
        if not isinstance(dynamic, DynamicSection):
            raise ValueError(f"{path} is not a shared object")
        needed, run_path = _dependencies(dynamic)
        return SharedObject(
            machine=_MACHINES[machine],
            needed=needed,
            run_path=run_path,
            versions=_versions(elf),
            undefined=_undefined(elf),
            sections=frozenset(part.name for part in elf.iter_sections() if part["sh_size"]),
        )


def _dependencies(dynamic: DynamicSection) -> tuple[tuple[str, ...], tuple[str, ...]]:
    needed: list[str] = []
    run_path: list[str] = []
    tags: Any = dynamic.iter_tags()  # the attribute is named after the tag
    for tag in tags:
        if tag.entry.d_tag == "DT_NEEDED":
            needed.append(tag.needed)
        elif tag.entry.d_tag == "DT_RPATH":
            run_path += tag.rpath.split(":")
        elif tag.entry.d_tag == "DT_RUNPATH":
            run_path += tag.runpath.split(":")
    return tuple(needed), tuple(run_path)


def _versions(elf: ELFFile) -> frozenset[str]:
    return frozenset(
        auxiliary.name
        for section in elf.iter_sections()
        if isinstance(section, GNUVerNeedSection)
        for _, auxiliaries in section.iter_versions()
        for auxiliary in auxiliaries
    )


def _undefined(elf: ELFFile) -> frozenset[str]:
    table: Any = elf.get_section_by_name(".dynsym")
    symbols = table.iter_symbols() if table else ()
    return frozenset(
        symbol.name
        for symbol in symbols
        if symbol["st_shndx"] == "SHN_UNDEF" and symbol["st_info"]["bind"] == "STB_GLOBAL"
    )


def refuse_foreign(
    objects: Iterable[SharedObject], device: str, machines: Iterable[str], needed: Iterable[str]
) -> None:
    """ValueError when the libraries of a wheel are not for what arch_config says of its device."""
    objects, machines = list(objects), list(machines)
    if others := {shared.machine for shared in objects} - set(machines):
        raise ValueError(
            f"the libraries are for {', '.join(sorted(others))}, the wheels of {device} for "
            f"{', '.join(machines)} (arch_config/devices.bzl: machines)"
        )
    present = {name for shared in objects for name in shared.needed}
    if missing := set(needed) - present:
        raise ValueError(
            f"its torch brings {', '.join(sorted(missing))}, and the operator library was linked "
            f"with {', '.join(sorted(present))}. Build with the toolkit of the version that this "
            "torch was built with (arch_config/devices.bzl: torch, needed)"
        )


def platform_tag(objects: Iterable[SharedObject]) -> str:
    """manylinux_2_X_<machine> with the smallest X that has every symbol of all `objects`."""
    objects = list(objects)
    machines = {shared.machine for shared in objects}
    if len(machines) != 1:
        raise ValueError(f"one machine is needed, the shared objects are for {sorted(machines)}")
    versions = frozenset().union(*(shared.versions for shared in objects))
    minor = max((smallest_glibc(version) for version in versions), default=17)
    return f"manylinux_2_{max(minor, 17)}_{machines.pop()}"


def smallest_glibc(version: str) -> int:
    """X of the oldest glibc 2.X platform that has a symbol version such as GLIBCXX_3.4.30."""
    matched = re.fullmatch(r"(GLIBC|GLIBCXX|CXXABI)_(\d+(?:\.\d+)*)", version)
    if not matched:  # GCC_3.0 and the like are older than every platform
        return 17
    family = matched.group(1)
    number = tuple(map(int, matched.group(2).split(".")))
    if family == "GLIBC":
        return number[1]
    table = _NEWEST_GLIBCXX if family == "GLIBCXX" else _NEWEST_CXXABI
    for minor, newest in table.items():
        if number <= newest:
            return minor
    raise ValueError(f"{version} is newer than every platform in this table; add a row to it")
