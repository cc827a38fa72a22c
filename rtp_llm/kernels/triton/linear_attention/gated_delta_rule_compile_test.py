# SPDX-License-Identifier: Apache-2.0
"""The chunked delta rule in Triton, compiled for other GPUs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from rtp_llm.kernels.triton.linear_attention import gated_delta_rule_kernel as kernels
from rtp_llm.kernels.triton.linear_attention.gated_delta_rule import tiles_for
from rtp_llm.kernels.triton.processors import Processors

TARGETS = {
    "MI300": (GPUTarget("hip", "gfx942", 64), 64 << 10),
    "MI350": (GPUTarget("hip", "gfx950", 64), 160 << 10),
    "A100": (GPUTarget("cuda", 80, 32), 163 << 10),
    "H100": (GPUTarget("cuda", 90, 32), 227 << 10),
}
_FLOATS = ("factors", "decays", "a_log", "dt_bias", "ring_u", "ring_g", "state")
_INDICES = ("folded", "cu", "seq_lens", "read", "write")


def _compiled(
    kernel: Any, element: str, constants: dict[str, Any], target: GPUTarget, warps: int
) -> Any:
    """The kernel for Qwen3-Next's heads, without such a GPU."""
    types = {f"{name}_ptr": "*fp32" for name in _FLOATS}
    types |= {f"{name}_ptr": "*i32" for name in _INDICES}
    constants = {name: constants[name] for name in kernel.arg_names if name in constants}
    signature = {
        name: "constexpr"
        if name in constants
        else types.get(name, f"*{element}" if name.endswith("_ptr") else "i32")
        for name in kernel.arg_names
    }
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature=signature, constexprs=places)
    return triton.compile(source, target=target, options={"num_warps": warps})


@pytest.mark.parametrize("gpu", TARGETS)
@pytest.mark.parametrize("element", ["bf16", "fp32"])
def test_it_compiles_ahead_of_time(gpu: str, element: str) -> None:
    target, shared_bytes = TARGETS[gpu]
    wide = element == "fp32"
    tiles = tiles_for(
        torch.float32 if wide else torch.bfloat16, 128, 128, Processors(1, shared_bytes)
    )
    common = {"KEY_HEADS": 16, "HEADS": 32, "KEY": 128, "PADDED_KEY": 128, "VALUE": 128}
    common |= {"VALUES": 128, "PADDED_VALUE": 128, "RING": 16, "TRANSPOSED": tiles[-1].transposed}
    common["PRECISION"] = "tf32x3" if wide and target.backend == "cuda" else "ieee"
    launches = [(kernels.prepare_kernel, common, 4)]
    for tile in tiles:
        own = {"COLUMNS": tile.columns, "STAGES": tile.stages, "TRANSPOSED": tile.transposed}
        launches.append((kernels.advance_kernel, common | own, tile.warps))
    for kernel, constants, warps in launches:
        made = _compiled(kernel, element, constants, target, warps)
        assert made.metadata.shared <= shared_bytes
