# SPDX-License-Identifier: Apache-2.0
"""Caches whose blocks hold keys and values in the orders that AMD's attention reads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rtp_llm import compat
from rtp_llm.compat.cache_layout import CacheLayout
from rtp_llm.testing.fused_steps import Step, configs
from rtp_llm.testing.operator_checks import kernel_runs

BASE = compat.RopeSettings(compat.RopeStyle.Base, 64)
VECTORS = (CacheLayout.VECTOR, CacheLayout.VECTOR_KEYS)
FP8 = {"kv_cache_dtype": compat.KvCacheDataType.FP8}


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def plain(base: Tensor, layout: CacheLayout) -> tuple[Tensor, Tensor]:
    """Keys and values [N, Hk, S, D] of a cache [N, 2, Hk, S, D] in another order."""
    keys, values = base.contiguous().unbind(1)
    n, heads, size, channels = keys.shape
    width = 16 // base.element_size()
    keys = keys.reshape(n, heads, channels // width, size, width).transpose(2, 3)
    if layout is CacheLayout.VECTOR:
        values = values.reshape(n, heads, size // width, channels, width).transpose(3, 4)
    else:
        values = values.reshape(n, heads, channels, size).transpose(2, 3)
    return keys.reshape(n, heads, size, channels), values.reshape(n, heads, size, channels)


@pytest.mark.parametrize("layout", VECTORS, ids=str)
@pytest.mark.parametrize("more", [{}, FP8, FP8 | {"fp8_dtype": torch.float8_e4m3fnuz}])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_prefill_and_decode_write_what_the_plain_cache_gets(
    layout: CacheLayout, more: dict[str, Any], dtype: torch.dtype
) -> None:
    heads = (4, 2, 128)
    rows = {"blocks": (32, 16), "planes": False, **more}
    step = Step.random(configs(BASE, heads, cache_layout=layout, **rows), 2, dtype)
    other = Step.random(configs(BASE, heads, **rows), 2, dtype)
    other.physical = step.physical
    qkv, more_qkv = step.qkv(60), step.qkv(2)
    for each in (step, other):
        prefill = compat.FusedRopeKVCachePrefillOpSplitOut(each.config)
        decode = compat.FusedRopeKVCacheDecodeOp(each.config)
        with kernel_runs("rotate_and_store", times=2):
            prefill.forward(qkv, each.cache, prefill.prepare(each.prefill([47, 13], [0, 20])))
            decode.forward(more_qkv, each.cache, decode.prepare(each.decode([47, 33])))
    expected = other.cache.kv_cache_base
    assert expected.float().any()
    keys, values = plain(step.cache.kv_cache_base, layout)
    assert torch.equal(values.float(), expected[:, 1].float())
    if more:
        assert torch.equal(keys.float(), expected[:, 0].float())
    else:  # not to the bit: another kernel may contract products otherwise
        torch.testing.assert_close(keys, expected[:, 0], rtol=1e-2, atol=1e-2)
    if more:
        assert step.cache.kv_scale_base is not None
        assert torch.equal(step.cache.kv_scale_base, other.cache.kv_scale_base)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reader_layout": CacheLayout.PLAIN}, "written as 'vector' and read as 'plain'"),
        ({"reader_layout": CacheLayout.VECTOR_KEYS}, "read as 'vector_keys'; expected one layout"),
        ({"planes": True}, "lies block by block"),
        ({"blocks": (4, 4)}, "blocks of 4 and heads of 64; expected multiples of 8"),
        ({"blocks": (8, 8), **FP8}, "expected multiples of 16"),
    ],
)
def test_layouts_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    given = {"planes": False, "cache_layout": CacheLayout.VECTOR} | changes
    with pytest.raises(ValueError, match=message):
        configs(BASE, **given)


def test_reader_and_writer_of_one_layout_are_taken() -> None:
    for layout in CacheLayout:
        config = configs(BASE, planes=False, cache_layout=layout, reader_layout=layout)
        assert config.cache_layout is layout
