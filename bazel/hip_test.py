"""Every GPU kernel is also HIP: hipcc compiles and links all of them for gfx90a."""

from __future__ import annotations

from pathlib import Path

from elftools.elf.elffile import ELFFile

from bazel.nested_for_tests import NestedBazel, linked_tree

_LIBRARY = "libkernels_for_tests.so"


def test_kernels_compile_and_link_for_gfx90a(tmp_path: Path) -> None:
    tree = linked_tree(tmp_path / "tree")
    bazel = NestedBazel(tmp_path)
    try:
        done = bazel.run(tree, "--config=rocm", f"//rtp_llm/kernels/cuda:{_LIBRARY}")
        assert done.returncode == 0, done.stderr
        library = tree / "bazel-bin/rtp_llm/kernels/cuda" / _LIBRARY
        assert b"amdgcn-amd-amdhsa--gfx90a" in library.read_bytes()
        assert any(name.startswith("libamdhip64.so") for name in _needed(library))
        assert not {name for name in bazel.fetched if name.startswith("pip_")}
    finally:
        bazel.close()


def _needed(library: Path) -> list[str]:
    with library.open("rb") as file:
        tags = ELFFile(file).get_section_by_name(".dynamic").iter_tags("DT_NEEDED")
        return [tag.needed for tag in tags]
