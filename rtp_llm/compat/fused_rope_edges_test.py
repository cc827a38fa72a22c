# SPDX-License-Identifier: Apache-2.0
"""The fused RoPE operators at their edges: empty batches, negative lengths, memory not taken."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rtp_llm import compat
from rtp_llm.compat import RopeSettings, RopeStyle
from rtp_llm.testing.fused_steps import Step, configs

BASE = RopeSettings(RopeStyle.Base, 64)
PREFILLS = [
    compat.FusedRopeKVCachePrefillOpQOut,
    compat.FusedRopeKVCachePrefillOpQKVOut,
    compat.FusedRopeKVCachePrefillOpSplitOut,
]
EVERY = [*PREFILLS, compat.FusedRopeKVCacheDecodeOp]
MROPE = RopeSettings(
    RopeStyle.Mrope, 64, index_factor=3, mrope_dim1=12, mrope_dim2=10, mrope_dim3=10
)


def inputs(kind: type, step: Step, new: list[int], past: list[int], **given: Any) -> Any:
    """A step of that operator."""
    if kind is compat.FusedRopeKVCacheDecodeOp:
        return step.decode(past, **given)
    return step.prefill(new, past, **given)


@pytest.mark.parametrize("rope", [BASE, MROPE], ids=lambda rope: rope.style.name)
@pytest.mark.parametrize("table", ["rows", "none", "flat", "empty"])
@pytest.mark.parametrize("kind", EVERY)
def test_an_empty_batch_does_nothing(kind: type, table: str, rope: RopeSettings) -> None:
    step = Step.random(configs(rope), 0, torch.bfloat16)
    tables = {"none": None, "flat": torch.empty(0).int(), "empty": torch.empty(0, 0).int()}
    given = {} if table == "rows" else {"kv_cache_kernel_block_id_device": tables[table]}
    operator = kind(step.config)
    params = operator.prepare(inputs(kind, step, [], [], **given))
    out = operator.forward(step.qkv(0), step.cache, params)
    parts = out if isinstance(out, tuple) else (out,)
    assert all(len(part) == 0 and part.dtype == torch.bfloat16 for part in parts)
    assert parts[0].shape[1:] == ((512,) if kind is PREFILLS[1] else (4, 64))
    assert not step.cache.kv_cache_base.any()


@pytest.mark.parametrize("kind", PREFILLS)
def test_requests_without_new_tokens_do_nothing(kind: type) -> None:
    step = Step.random(configs(BASE), 3, torch.float32)
    operator = kind(step.config)
    params = operator.prepare(step.prefill([0, 0, 0], [0, 0, 0]))
    operator.forward(step.qkv(0), step.cache, params)
    assert not step.cache.kv_cache_base.any()


@pytest.mark.parametrize("kind", EVERY)
def test_negative_lengths_are_refused(kind: type) -> None:
    step = Step.random(configs(BASE), 2, torch.float32)
    operator = kind(step.config)
    name = "sequence" if kind is compat.FusedRopeKVCacheDecodeOp else "prefix"
    with pytest.raises(RuntimeError, match=rf"{name}_lengths\[1\] is -3; expected at least 0"):
        operator.prepare(inputs(kind, step, [4, 4], [0, -3]))
    if kind is not compat.FusedRopeKVCacheDecodeOp:
        with pytest.raises(RuntimeError, match=r"input_lengths\[0\] is -1; expected at least 0"):
            operator.prepare(step.prefill([-1, 4], [0, 0]))
    ids = torch.tensor([3, -2, 1, 0, 0, 0, 0, 0]).int().cpu()
    with pytest.raises(RuntimeError, match="a token at position -2"):
        operator.prepare(inputs(kind, step, [4, 4], [0, 0], combo_position_ids=ids))


def test_keys_and_values_with_a_cache_take_no_memory() -> None:
    step = Step.random(configs(BASE), 2, torch.float32)
    qkv = step.qkv(12)
    operator = compat.FusedRopeKVCachePrefillOpSplitOut(step.config)
    params = operator.prepare(step.prefill([5, 7], [0, 0]))
    assert params.output.shape == (12, 4, 64), "queries alone"
    q, k, v = operator.forward(qkv, step.cache, params)
    assert params.kv_output is None
    assert q.data_ptr() == params.output.data_ptr()
    owner = qkv.untyped_storage().data_ptr()
    assert k.untyped_storage().data_ptr() == v.untyped_storage().data_ptr() == owner
    assert k.shape == v.shape == (12, 2, 64)
    bare = operator.prepare(step.prefill([5, 7], [0, 0], kv_cache_kernel_block_id_device=None))
    assert bare.output.shape == (12, 8, 64), "nobody else keeps them"
    expected = operator.forward(qkv, None, bare)
    for _ in range(2):  # of a step with a block table too, in one buffer for all layers
        parts = operator.forward(qkv, None, params)
        for part, other in zip(parts, expected, strict=True):
            assert part.is_contiguous()
            assert torch.equal(part, other)
        assert params.kv_output is not None
        assert parts[1].data_ptr() == params.kv_output.data_ptr()
