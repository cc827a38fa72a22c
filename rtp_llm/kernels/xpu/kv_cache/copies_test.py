# SPDX-License-Identifier: Apache-2.0
"""Strided and batched copies: every byte at its place, and no other one touched."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rtp_llm.testing.xpu.bridge import bridge


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def batched_copy(pairs: list[tuple[Tensor, Tensor]]) -> None:
    """The second of each pair into the first, in one submission; all contiguous."""
    to, source = (torch.tensor([pair[side].data_ptr() for pair in pairs]) for side in (0, 1))
    sizes = [pair[0].numel() * pair[0].element_size() for pair in pairs]
    bridge.batched_copy(to.long(), source.long(), torch.tensor(sizes).long(), max(sizes, default=0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize(
    ("rows", "columns", "to_gap", "from_gap"),
    [(1, 1, 1, 2), (5, 16, 0, 0), (5, 16, 16, 0), (7, 33, 1, 5), (3, 9000, 8, 0), (0, 4, 1, 1)],
)
def test_strided_copy(
    dtype: torch.dtype, rows: int, columns: int, to_gap: int, from_gap: int
) -> None:
    source = (100 * torch.randn(rows, columns + from_gap)).to(dtype)[:, :columns]
    whole = torch.zeros(rows, columns + to_gap, dtype=dtype)
    expected = whole.clone()
    expected[:, :columns] = source
    bridge.strided_copy(whole[:, :columns], source)
    assert torch.equal(whole, expected)


def test_batched_copy() -> None:
    sizes = [1, 0, 16, 7, 40000, 4096, 33]
    sources = [torch.randn(size) for size in sizes]
    targets = [torch.zeros(size + 1) for size in sizes]
    # Every other region is off the alignment of words.
    parts = [target[i % 2 :][: sizes[i]] for i, target in enumerate(targets)]
    batched_copy(list(zip(parts, sources, strict=True)))
    for i, (target, source) in enumerate(zip(targets, sources, strict=True)):
        expected = torch.zeros_like(target)
        expected[i % 2 :][: len(source)] = source
        assert torch.equal(target, expected)


def test_no_regions() -> None:
    batched_copy([])
