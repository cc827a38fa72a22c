# SPDX-License-Identifier: Apache-2.0
"""Rotary embedding with the cache write, against its reference and against complex numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rtp_llm import ops
from rtp_llm.ops.rope.rope_reference import rope_kv_write_reference
from rtp_llm.testing.operator_checks import (
    FLOAT_DTYPES,
    ISAS,
    assert_near,
    cpu_only,
    kernel_runs,
    running,
)
from rtp_llm.testing.rope_layouts import LAYOUTS, MAX_POSITIONS, rotary_table

BLOCK_SIZE, NUM_BLOCKS = 4, 40

every_isa = pytest.mark.parametrize("isa", ISAS)
every_dtype = pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def _case(tokens: int, layout: tuple[int, ...], dtype: torch.dtype) -> dict[str, Any]:
    heads, kv_heads, head_dim, rotary_dim, offset = layout
    width = (heads + 2 * kv_heads) * head_dim
    slots = torch.randperm(NUM_BLOCKS * BLOCK_SIZE)[:tokens].int()
    slots[tokens // 2 :: 3] = -1
    return {
        "qkv": torch.randn(tokens, width + 3).to(dtype)[:, :width],
        "positions": torch.randint(0, MAX_POSITIONS, (tokens,), dtype=torch.int32),
        "cos_sin": rotary_table(rotary_dim),
        "kv_cache": torch.randn(2, NUM_BLOCKS, BLOCK_SIZE, kv_heads, head_dim).to(dtype),
        "slot_mapping": slots,
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "is_neox": True,
        "rotary_offset": offset,
    }


def _copy(case: dict[str, Any]) -> dict[str, Any]:
    return {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in case.items()}


@every_isa
@every_dtype
@pytest.mark.parametrize("is_neox", [True, False])
def test_equals_reference(isa: str, dtype: torch.dtype, is_neox: bool) -> None:
    for layout in LAYOUTS:
        for tokens in (0, 1, 3, 37):
            case = _case(tokens, layout, dtype) | {"is_neox": is_neox}
            expected = _copy(case)
            rope_kv_write_reference(**expected)
            with running(isa), kernel_runs("rope_kv_write"):
                ops.rope_kv_write(**case)
            assert_near(case["qkv"].contiguous(), expected["qkv"].contiguous())
            assert_near(case["kv_cache"], expected["kv_cache"])


@pytest.mark.parametrize("is_neox", [True, False])
def test_is_a_rotation_of_complex_numbers(is_neox: bool) -> None:
    case = _case(9, (2, 1, 16, 16, 0), torch.float32) | {"is_neox": is_neox}
    before = case["qkv"].clone().view(9, 4, 16)
    ops.rope_kv_write(**case)
    turn = torch.complex(*case["cos_sin"][case["positions"].long()].unsqueeze(1).chunk(2, dim=-1))

    def pairs(heads: torch.Tensor) -> torch.Tensor:
        if is_neox:
            return torch.complex(heads[..., :8], heads[..., 8:])
        return torch.complex(heads[..., 0::2], heads[..., 1::2])

    after = case["qkv"].view(9, 4, 16)
    torch.testing.assert_close(pairs(after[:, :3]), pairs(before[:, :3]) * turn)
    assert torch.equal(after[:, 3], before[:, 3])


@every_dtype
def test_cache_takes_rotated_keys_and_untouched_values(dtype: torch.dtype) -> None:
    case = _case(11, (4, 2, 32, 32, 0), dtype)
    before = _copy(case)
    ops.rope_kv_write(**case)
    heads = case["qkv"].view(11, 8, 32)
    values = before["qkv"].view(11, 8, 32)[:, 6:]
    written = torch.zeros(NUM_BLOCKS, BLOCK_SIZE, dtype=torch.bool)
    for token, slot in enumerate(case["slot_mapping"].tolist()):
        if slot >= 0:
            block, place = divmod(slot, BLOCK_SIZE)
            written[block, place] = True
            assert torch.equal(case["kv_cache"][0, block, place], heads[token, 4:6])
            assert torch.equal(case["kv_cache"][1, block, place], values[token])
    assert torch.equal(case["kv_cache"][:, ~written], before["kv_cache"][:, ~written])


def test_either_half_alone() -> None:
    case = _case(5, (2, 1, 16, 16, 0), torch.float32)
    for left_out in ({"cos_sin": None}, {"kv_cache": None, "slot_mapping": None}):
        actual, expected = _copy(case) | left_out, _copy(case) | left_out
        ops.rope_kv_write(**actual)
        rope_kv_write_reference(**expected)
        assert_near(actual["qkv"], expected["qkv"])
        if actual["kv_cache"] is not None:
            assert torch.equal(actual["kv_cache"], expected["kv_cache"])


def test_cache_of_one_layer_among_others() -> None:
    case = _case(7, (2, 2, 16, 16, 0), torch.float32)
    planes = torch.randn(2, 3, NUM_BLOCKS, BLOCK_SIZE, 2, 16)
    expected = _copy(case)
    rope_kv_write_reference(**expected | {"kv_cache": (expected_cache := planes.clone()[:, 1])})
    ops.rope_kv_write(**case | {"kv_cache": planes[:, 1]})
    assert_near(planes[:, 1].contiguous(), expected_cache.contiguous())


def test_prefill_in_chunks_writes_the_same_cache() -> None:
    case = _case(24, (2, 1, 64, 64, 0), torch.bfloat16)
    case["slot_mapping"] = torch.arange(24, dtype=torch.int32)
    whole = _copy(case)
    ops.rope_kv_write(**whole)
    for cut in (1, BLOCK_SIZE, 13):
        chunked = _copy(case)
        for part in (slice(0, cut), slice(cut, 24)):
            chunk = {k: chunked[k][part] for k in ("qkv", "positions", "slot_mapping")}
            ops.rope_kv_write(**chunked | chunk)
        assert torch.equal(chunked["kv_cache"], whole["kv_cache"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"qkv": torch.zeros(2, 63)}, r"expected rows of \(2 \+ 2 \* 1\) \* 16"),
        ({"qkv": torch.zeros(2, 64).int()}, "qkv is int32"),
        ({"positions": torch.zeros(3).int()}, r"positions .* expected shape \[2\]"),
        ({"positions": torch.zeros(2).long()}, "positions is int64"),
        ({"cos_sin": torch.zeros(64, 16).half()}, "cos_sin is float16"),
        ({"cos_sin": torch.zeros(64, 18)}, "even rotary size within heads of 16"),
        ({"cos_sin": torch.zeros(64, 7)}, "even rotary size"),
        ({"rotary_offset": 1}, "rotary_offset 1"),
        ({"kv_cache": None}, "go together"),
        ({"slot_mapping": None}, "go together"),
        ({"kv_cache": torch.zeros(2, 40, 4, 1, 16).half()}, "kv_cache is float16"),
        ({"kv_cache": torch.zeros(2, 40, 4, 2, 16)}, "kv_cache .* expected shape"),
        ({"kv_cache": torch.zeros(2, 40, 4, 16)}, "kv_cache .* 5 dimensions"),
        ({"num_heads": 0}, "expected rows of"),
    ],
)
def test_wrong_arguments_are_named(change: dict[str, Any], message: str) -> None:
    case = _case(2, (2, 1, 16, 16, 0), torch.float32)
    with pytest.raises(RuntimeError, match=message):
        ops.rope_kv_write(**case | change)


@cpu_only
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"positions": torch.tensor([0, 64]).int()}, r"positions\[1\] is 64"),
        ({"positions": torch.tensor([-1, 0]).int()}, r"positions\[0\] is -1"),
        ({"slot_mapping": torch.tensor([0, 160]).int()}, r"slot_mapping\[1\] is 160"),
        ({"slot_mapping": torch.tensor([-2, 0]).int()}, r"slot_mapping\[0\] is -2"),
    ],
)
def test_index_out_of_range_is_named(change: dict[str, Any], message: str) -> None:
    case = _case(2, (2, 1, 16, 16, 0), torch.float32)
    with pytest.raises(IndexError, match=message):
        ops.rope_kv_write(**case | change)


def test_rope_kv_write_is_traceable() -> None:
    case = _case(3, (2, 1, 16, 16, 0), torch.float32)
    torch.library.opcheck(
        torch.ops.rtp_llm.rope_kv_write.default,
        tuple(case.values()),
        test_utils=("test_schema", "test_faketensor"),
    )
