# SPDX-License-Identifier: Apache-2.0
"""The block copy against its reference."""

from __future__ import annotations

import pytest
import torch

from rtp_llm import ops
from rtp_llm.ops.kv_cache.copy_blocks_reference import copy_blocks_reference
from rtp_llm.testing.operator_checks import FLOAT_DTYPES, cpu_only, kernel_runs


def _pairs(*pairs: tuple[int, int]) -> torch.Tensor:
    return torch.tensor(pairs, dtype=torch.int32).reshape(-1, 2)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_copy_blocks_equals_reference(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for shape in (
        (1, 2, 9, 1, 1, 1),
        (3, 2, 12, 4, 2, 8),
        (2, 2, 40, 16, 3, 80),
        (3, 1, 9, 4, 1, 72),
    ):
        cache = torch.randn(shape).to(dtype)
        order = torch.randperm(shape[2])
        pairs = torch.stack((order[:2].repeat(2), order[4:8]), dim=1).int()
        expected = cache.clone()
        copy_blocks_reference(expected, pairs)
        with kernel_runs("copy_blocks"):
            ops.copy_blocks(cache, pairs)
        assert torch.equal(cache, expected)


def test_planes_may_be_apart() -> None:
    whole = torch.randn(2, 2, 8, 4, 2, 8)
    cache = whole[:, :, 1:7]
    expected = whole.clone()
    copy_blocks_reference(expected[:, :, 1:7], _pairs((0, 5), (3, 2)))
    ops.copy_blocks(cache, _pairs((0, 5), (3, 2)))
    assert torch.equal(whole, expected)


def test_no_pairs() -> None:
    cache = torch.randn(1, 2, 3, 4, 1, 8)
    before = cache.clone()
    ops.copy_blocks(cache, _pairs())
    assert torch.equal(cache, before)


@cpu_only
@pytest.mark.parametrize("function", [ops.copy_blocks, copy_blocks_reference])
def test_pairs_whose_order_matters_are_refused(function: object) -> None:
    assert callable(function)
    cache = torch.randn(1, 2, 6, 4, 1, 8)
    before = cache.clone()
    for pairs in (_pairs((0, 1), (1, 2)), _pairs((1, 2), (0, 1)), _pairs((3, 3))):
        with pytest.raises(RuntimeError, match=r"also a source|both a source"):
            function(cache, pairs)
    with pytest.raises(RuntimeError, match="destination"):
        function(cache, _pairs((0, 1), (2, 1)))
    for bad in (-1, 6):
        with pytest.raises(IndexError):
            function(cache, _pairs((0, 1), (2, bad)))
        with pytest.raises(IndexError):
            function(cache, _pairs((bad, 1)))
    assert torch.equal(cache, before)


def test_wrong_arguments_are_named() -> None:
    cache = torch.zeros(1, 2, 6, 4, 1, 8)
    with pytest.raises(RuntimeError, match=r"cache is float32 .*; expected 6 dimensions"):
        ops.copy_blocks(cache[0], _pairs((0, 1)))
    with pytest.raises(RuntimeError, match=r"expected \[layers, 1 or 2 planes, blocks"):
        ops.copy_blocks(torch.zeros(1, 3, 6, 4, 1, 8), _pairs((0, 1)))
    with pytest.raises(RuntimeError, match="gaps within its last 3 dimensions"):
        ops.copy_blocks(torch.zeros(1, 2, 6, 4, 8, 2).transpose(4, 5), _pairs((0, 1)))
    with pytest.raises(RuntimeError, match=r"pairs is int64 \[1, 2\]; expected int32"):
        ops.copy_blocks(cache, _pairs((0, 1)).long())
    with pytest.raises(RuntimeError, match=r"pairs is int32 \[2\]"):
        ops.copy_blocks(cache, _pairs((0, 1))[0])


def test_copy_blocks_is_traceable() -> None:
    torch.library.opcheck(
        torch.ops.rtp_llm.copy_blocks.default,
        (torch.randn(1, 2, 4, 2, 1, 8), _pairs((0, 1))),
        test_utils=("test_schema", "test_faketensor"),
    )
