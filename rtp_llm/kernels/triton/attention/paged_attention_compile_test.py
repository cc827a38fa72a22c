# SPDX-License-Identifier: Apache-2.0
"""Paged attention in Triton, compiled for AMD's GPUs: with 8-bit caches of each GPU's own type."""

from __future__ import annotations

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from rtp_llm.kernels.triton.attention.paged_attention import Tile, choose_tile
from rtp_llm.kernels.triton.attention.paged_attention_kernel import attention_kernel

# Shared memory in bytes, and the type of FP8 that matrix cores take: e4m3fnuz, or e4m3fn.
GPUS = {"gfx942": (64 << 10, "fp8e4b8"), "gfx950": (160 << 10, "fp8e4nv")}
_POINTERS = {"stats_ptr": "*fp32", "sinks_ptr": "*bf16", "q_ptr": "*bf16"}
_POINTERS |= {f"{name}_ptr": "*i32" for name in ("cu", "seq_lens", "table")}
_POINTERS |= {"k_scale_ptr": "*fp32", "v_scale_ptr": "*fp32"}


def _compiled(gpu: str, cache: str, tile: Tile, decode: bool) -> triton.compiler.CompiledKernel:
    """For heads of 128, four to a KV head, in blocks of 16 tokens."""
    constants = {"GROUP": 4, "HEAD": 128, "PADDED_HEAD": 128, "PAGE": 16, "ROWS": tile.rows}
    constants |= {"TOKENS": tile.rows // 4, "KEYS": tile.keys, "SPLITS": tile.splits}
    constants |= {"DECODE": decode, "CAUSAL": True, "HAS_WINDOW": False, "HAS_CAP": False}
    constants |= {"HAS_SINKS": False, "HAS_SCALES": cache != "bf16", "OVERLAPS": False}
    types = _POINTERS | {"k_ptr": f"*{cache}", "v_ptr": f"*{cache}", "factor": "fp32"}
    types |= {"soft_cap": "fp32", "out_ptr": "*bf16" if tile.splits == 1 else "*fp32"}
    names = attention_kernel.arg_names
    signature = {n: "constexpr" if n in constants else types.get(n, "i32") for n in names}
    places = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(attention_kernel, signature=signature, constexprs=places)
    options = {"num_warps": tile.warps, "num_stages": tile.stages}
    return triton.compile(source, target=GPUTarget("hip", gpu, 64), options=options)


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("queries", [1, 1000])
@pytest.mark.parametrize("is_narrow", [False, True], ids=["bf16", "fp8"])
def test_it_compiles_ahead_of_time(gpu: str, queries: int, is_narrow: bool) -> None:
    shared_bytes, float8 = GPUS[gpu]
    tile = choose_tile(8, 4, 8, 128, queries, 1000, 2, 304)
    made = _compiled(gpu, float8 if is_narrow else "bf16", tile, queries == 1)
    assert made.metadata.shared <= shared_bytes
    assert "v_mfma_f32" in made.asm["amdgcn"]
