# SPDX-License-Identifier: Apache-2.0
"""Tests of what is asked of lengths and block tables; nothing of Triton is needed."""

from __future__ import annotations

import pytest
import torch

from rtp_llm.kernels.triton.sequence_checks import check_sequences


def table(sequences: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.zeros(sequences, 5, dtype=dtype)


def lengths(count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.int32)


@pytest.mark.parametrize("sequences", [0, 1, 3])
def test_what_fits_together_passes(sequences):
    check_sequences(lengths(sequences + 1), lengths(sequences), table(sequences))


@pytest.mark.parametrize(
    ("cu_seqlens_q", "block_table", "words"),
    [
        (lengths(3), table(3), "3 sequences need 4 prefix sums"),
        (lengths(4), table(2), "a block table of 3 rows"),
        (lengths(4), table(3, torch.int64), "must be int32"),
        (lengths(4), torch.zeros(5, 3, dtype=torch.int32).T[:3], "without gaps"),
    ],
)
def test_what_does_not_is_refused(cu_seqlens_q, block_table, words):
    with pytest.raises(ValueError, match=words):
        check_sequences(cu_seqlens_q, lengths(3), block_table)
