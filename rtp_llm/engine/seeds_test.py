# SPDX-License-Identifier: Apache-2.0
"""Tests of seeds for sequences."""

from __future__ import annotations

import torch

from rtp_llm.engine.seeds import SeedSource


def test_a_given_seed_is_the_first_sequences_own():
    first = SeedSource(0).seeds_for(-7, 5)
    assert first[0] == -7
    assert len(set(first)) == 5
    assert first == SeedSource(99).seeds_for(-7, 5)


def test_requests_without_a_seed_draw_from_the_engines():
    source, same, other = SeedSource(1), SeedSource(1), SeedSource(2)
    drawn = [source.seeds_for(None, 2) for _ in range(100)]
    assert drawn == [same.seeds_for(None, 2) for _ in range(100)]
    assert len({seed for pair in drawn for seed in pair}) == 200
    assert drawn[0] != other.seeds_for(None, 2)


def test_all_seeds_are_signed_64_bit_numbers():
    for start in (0, 2**63 - 1):
        seeds = [seed for _ in range(50) for seed in SeedSource(start).seeds_for(None, 8)]
        assert torch.tensor(seeds, dtype=torch.int64).tolist() == seeds
