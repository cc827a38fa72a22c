# SPDX-License-Identifier: Apache-2.0
"""Every GPU kernel is also HIP: hipcc has compiled and linked all of them for gfx90a.

Run under --config=rocm, where the operator library is made of the same objects.
"""

from __future__ import annotations

from pathlib import Path

from elftools.elf.elffile import ELFFile

from bazel.nested_for_tests import NestedBazel, linked_tree

_LIBRARY = Path("rtp_llm/kernels/cuda/libkernels_for_tests.so")


def test_kernels_compile_and_link_for_gfx90a() -> None:
    assert b"amdgcn-amd-amdhsa--gfx90a" in _LIBRARY.read_bytes()
    with _LIBRARY.open("rb") as file:
        tags = ELFFile(file).get_section_by_name(".dynamic").iter_tags("DT_NEEDED")
        needed = [tag.needed for tag in tags]
    assert any(name.startswith("libamdhip64.so") for name in needed)


def test_kernels_need_no_python_package(tmp_path: Path) -> None:
    tree = linked_tree(tmp_path / "tree")
    bazel = NestedBazel(tmp_path)
    try:
        label = f"//{_LIBRARY.parent}:{_LIBRARY.name}"
        done = bazel.run(tree, "--nobuild", "--config=rocm", label)
        assert done.returncode == 0, done.stderr
        assert not {name for name in bazel.fetched if name.startswith("pip_")}
    finally:
        bazel.close()
