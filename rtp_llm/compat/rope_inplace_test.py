# SPDX-License-Identifier: Apache-2.0
"""The in-place rotation with the write into flat slot buffers, against plain PyTorch."""

from __future__ import annotations

import pytest
import torch

from rtp_llm import compat
from rtp_llm.ops.rope.rope_reference import rotate_heads
from rtp_llm.testing.operator_checks import FLOAT_DTYPES, assert_near, kernel_runs

TOKENS, HEADS, KV_HEADS, SLOTS, POSITIONS = 11, 4, 2, 40, 50

every_dtype = pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@every_dtype
@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize(("head_size", "rotary"), [(64, 64), (80, 80), (128, 64)])
@pytest.mark.parametrize("wide", [torch.int32, torch.int64], ids=str)
def test_rotates_in_place_and_stores(
    dtype: torch.dtype, is_neox: bool, head_size: int, rotary: int, wide: torch.dtype
) -> None:
    query = torch.randn(TOKENS, HEADS * head_size).to(dtype)
    key, value = (torch.randn(TOKENS, KV_HEADS * head_size).to(dtype) for _ in range(2))
    table = torch.randn(POSITIONS, rotary)
    positions = torch.randint(0, POSITIONS, (TOKENS,)).to(wide)
    locations = torch.randperm(SLOTS)[:TOKENS].to(wide)
    buffers = [torch.zeros(SLOTS, KV_HEADS * head_size).to(dtype) for _ in range(2)]
    expected = []
    for rows in (query, key):
        heads = rows.clone().view(TOKENS, -1, head_size)
        heads[..., :rotary] = rotate_heads(heads[..., :rotary], table[positions.long()], is_neox)
        expected.append(heads.flatten(1))
    target = compat.FusedSetKVBufferArg(value, *buffers, None, None, locations)
    plain_query, plain_key = query.clone(), key.clone()
    with kernel_runs("rotate_and_store"):
        compat.apply_rope_with_cos_sin_cache_inplace(
            positions, query, key, head_size, table, is_neox, target
        )
    assert_near(query, expected[0])
    assert_near(key, expected[1])
    assert torch.equal(buffers[0][locations.long()], key)
    assert torch.equal(buffers[1][locations.long()], value)
    assert int(buffers[1].any(dim=1).sum()) == TOKENS
    compat.apply_rope_with_cos_sin_cache_inplace(
        positions, plain_query, plain_key, head_size, table, is_neox
    )
    assert torch.equal(plain_query, query)
    assert torch.equal(plain_key, key)


def test_8_bit_buffers_take_what_is_divided_by_the_scale() -> None:
    kind, head_size = torch.float8_e4m3fn, 64
    query, key, value = (torch.randn(TOKENS, 2 * head_size).bfloat16() for _ in range(3))
    buffers = [torch.zeros(SLOTS, 2, head_size).to(kind) for _ in range(2)]
    locations = torch.arange(TOKENS)
    scales = torch.tensor([0.25]), torch.tensor([0.001])
    target = compat.FusedSetKVBufferArg(value, *buffers, *scales, locations)
    table = torch.randn(POSITIONS, head_size)
    compat.apply_rope_with_cos_sin_cache_inplace(
        locations, query, key, head_size, table, fused_set_kv_buffer_arg=target
    )
    for rows, buffer, scale in ((key, buffers[0], 0.25), (value, buffers[1], 0.001)):
        expected = (rows.float() / scale).clamp(-448, 448).to(kind).view(TOKENS, 2, head_size)
        assert torch.equal(buffer[:TOKENS].float(), expected.float())


def test_rows_that_are_no_heads_are_named() -> None:
    rows, positions = torch.zeros(3, 100), torch.zeros(3).int()
    with pytest.raises(
        RuntimeError, match=r"rows are \[3, 100\]; expected \[tokens, heads \* 64\]"
    ):
        compat.apply_rope_with_cos_sin_cache_inplace(positions, rows, rows, 64, torch.zeros(5, 64))


def test_what_no_kernel_does_is_not_taken_silently() -> None:
    rows, positions, table = torch.ones(1, 64), torch.zeros(1).int(), torch.ones(2, 64)
    rotate = compat.apply_rope_with_cos_sin_cache_inplace
    for options in (None, False):
        rotate(positions, rows, rows.clone(), 64, table, enable_pdl=options)
    with pytest.raises(ValueError, match="enable_pdl=True: "):
        rotate(positions, rows, rows.clone(), 64, table, enable_pdl=True)
