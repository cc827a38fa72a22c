"""Tests of the tokens that stay on the device between steps."""

from __future__ import annotations

import torch

from rtp_llm.device import resolve_device
from rtp_llm.worker.sampled_tokens import SampledTokens


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_ids_name_rows_of_the_last_step_only():
    sampled = SampledTokens(4, resolve_device("cpu"))
    sampled.keep(int32(50, 60, 70))
    ids = int32(5, -1, -3, 0, -2)
    sampled.substitute(ids)
    assert ids.tolist() == [5, 50, 70, 0, 60]
    sampled.keep(int32(80))
    ids = int32(-1)
    sampled.substitute(ids)
    assert ids.tolist() == [80]


def test_a_step_without_rows_leaves_them():
    sampled = SampledTokens(2, resolve_device("cpu"))
    sampled.keep(int32(9, 8))
    sampled.keep(int32())
    ids = int32(-2, -1)
    sampled.substitute(ids)
    assert ids.tolist() == [8, 9]


def test_what_is_kept_does_not_change_with_its_source():
    sampled = SampledTokens(2, resolve_device("cpu"))
    tokens = int32(1, 2)
    sampled.keep(tokens)
    tokens += 10
    ids = int32(-1, -2)
    sampled.substitute(ids)
    assert ids.tolist() == [1, 2]
