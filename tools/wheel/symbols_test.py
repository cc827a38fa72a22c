# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import importlib.util

import pytest

from tools.wheel import symbols
from tools.wheel.symbols import SharedObject


@pytest.mark.parametrize(
    ("version", "minor"),
    [
        ("GLIBC_2.2.5", 2),
        ("GLIBC_2.34", 34),
        ("GLIBCXX_3.4", 17),
        ("GLIBCXX_3.4.19", 17),
        ("GLIBCXX_3.4.20", 24),
        ("GLIBCXX_3.4.30", 35),
        ("CXXABI_1.3.13", 34),
        ("GCC_3.0", 17),
    ],
)
def test_smallest_glibc(version: str, minor: int) -> None:
    assert symbols.smallest_glibc(version) == minor


def test_unknown_future_is_refused() -> None:
    with pytest.raises(ValueError, match=r"GLIBCXX_3\.5\.1 is newer"):
        symbols.smallest_glibc("GLIBCXX_3.5.1")


def test_platform_is_the_most_demanding_one() -> None:
    old = SharedObject("x86_64", versions=frozenset({"GLIBC_2.2.5"}))
    new = SharedObject("x86_64", versions=frozenset({"GLIBC_2.14", "GLIBCXX_3.4.29"}))
    assert symbols.platform_tag([old]) == "manylinux_2_17_x86_64"
    assert symbols.platform_tag([old, new]) == "manylinux_2_34_x86_64"


def test_machines_are_not_mixed() -> None:
    with pytest.raises(ValueError, match="one machine"):
        symbols.platform_tag([SharedObject("x86_64"), SharedObject("aarch64")])


def test_another_version_of_the_toolkit_is_refused() -> None:
    old = SharedObject("x86_64", needed=("libamdhip64.so.5", "libtorch_hip.so"))
    runtime = SharedObject("x86_64", needed=("libc.so.6",))
    wanted = ["libamdhip64.so.7", "libtorch_hip.so"]
    message = r"brings libamdhip64\.so\.7, and .* linked with libamdhip64\.so\.5, "
    with pytest.raises(ValueError, match=message):
        symbols.refuse_foreign([old, runtime], "rocm", ["x86_64"], wanted)
    new = SharedObject("x86_64", needed=("libamdhip64.so.7", "libtorch_hip.so"))
    symbols.refuse_foreign([new, runtime], "rocm", ["x86_64"], wanted)


def test_another_machine_is_refused() -> None:
    with pytest.raises(ValueError, match=r"are for aarch64, the wheels of xpu for x86_64 "):
        symbols.refuse_foreign([SharedObject("aarch64")], "xpu", ["x86_64"], [])


def test_reads_a_real_library() -> None:
    found = importlib.util.find_spec("msgspec._core")
    assert found and found.origin
    from pathlib import Path

    shared = symbols.read(Path(found.origin))
    assert "libc.so.6" in shared.needed
    assert any(version.startswith("GLIBC_2.") for version in shared.versions)
    assert "PyBool_Type" in shared.undefined
    assert {".dynsym", ".text"} <= shared.sections
