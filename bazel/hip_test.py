# SPDX-License-Identifier: Apache-2.0
"""Every GPU kernel is also HIP: all of them were compiled and linked for the GPUs of the build.

Run under --config=rocm, where the operator library is made of the same objects: for gfx942 by
`./dev test`, for gfx90a and gfx950 by `./dev soak`.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

from bazel.hip_code_for_tests import Kernel, kernels_of
from bazel.nested_for_tests import NestedBazel, linked_tree

_LIBRARY = Path("rtp_llm/kernels/cuda/libkernels_for_tests.so")
_GPUS = json.loads(Path("arch_config/targets.json").read_text())["rocm"]

# Kernels that do not have all their variables in registers: the most scalar registers that wait in
# lanes of vector registers (a move each, no memory), and bytes of memory that a lane has for arrays
# which it indexes by what is known at run time only. No vector register may spill.
_SPILLS = {
    "advance_states": (91, 0),  # strides and pointers of nine tensors, in a long loop
    "attend_tiles": (80, 132),  # the same of attention's arguments; a lane's sums of heads of 512
    "choose_of_searches": (86, 0),  # the loops of a sort, unrolled
    "fused_rope_heads": (0, 56),  # a token's channels, rotated by the style that the caller names
    "logprobs_of_rows": (2, 0),
    "sample_rows": (50, 128),  # the candidates of a lane
    "scan_states": (255, 0),  # strides and pointers of all tensors, in a long loop
    "select_kernel": (12, 0),
    "select_of_searches": (15, 0),
    "sort_kernel": (47, 0),  # the counters of all experts
}


@pytest.fixture(scope="module")
def kernels() -> list[Kernel]:
    return kernels_of(_LIBRARY)


def test_kernels_compile_and_link_for_every_gpu(kernels: list[Kernel]) -> None:
    names = {gpu: sorted(k.symbol for k in kernels if k.gpu == gpu) for gpu in _GPUS}
    assert {kernel.gpu for kernel in kernels} == set(_GPUS)
    assert all(len(of_gpu) > 150 for of_gpu in names.values())
    with _LIBRARY.open("rb") as file:
        dynamic = ELFFile(file).get_section_by_name(".dynamic")
        assert isinstance(dynamic, DynamicSection)
        needed = [tag.needed for tag in dynamic.iter_tags("DT_NEEDED")]  # type: ignore[attr-defined]
    assert any(name.startswith("libamdhip64.so") for name in needed)


def test_registers_suffice(kernels: list[Kernel]) -> None:
    spilled: dict[str, tuple[int, int]] = {}
    for kernel, name in zip(kernels, _names(kernels), strict=True):
        assert kernel.vector_spills == 0, f"{name} of {kernel.gpu}: {kernel}"
        scalars, private = spilled.get(name, (0, 0))
        spilled[name] = max(scalars, kernel.scalar_spills), max(private, kernel.private_bytes)
    above = {
        name: found
        for name, found in spilled.items()
        if any(f > m for f, m in zip(found, _SPILLS.get(name, (0, 0)), strict=True))
    }
    assert not above, "(scalar registers, bytes of private memory) above the table"


def _names(kernels: list[Kernel]) -> list[str]:
    """Functions without namespaces, template arguments and parameters."""
    text = "\n".join(kernel.symbol for kernel in kernels)
    done = subprocess.run(["c++filt"], input=text, capture_output=True, text=True, check=True)
    lines = done.stdout.replace("(anonymous namespace)::", "").splitlines()
    return [re.search(r"(\w+)[<(]", line)[1] for line in lines]  # type: ignore[index]


def test_kernels_need_no_python_package(tmp_path: Path) -> None:
    tree = linked_tree(tmp_path / "tree")
    bazel = NestedBazel(tmp_path)
    try:
        label = f"//{_LIBRARY.parent}:{_LIBRARY.name}"
        gpus = f"--//arch_config:gfx_target={','.join(_GPUS)}"
        done = bazel.run(tree, "--nobuild", "--config=rocm", gpus, label)
        assert done.returncode == 0, done.stderr
        assert not {name for name in bazel.fetched if name.startswith("pip_")}
    finally:
        bazel.close()
