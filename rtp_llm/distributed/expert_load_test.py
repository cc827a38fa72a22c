# SPDX-License-Identifier: Apache-2.0
"""Tests of the statistics of experts."""

from __future__ import annotations

import torch

from rtp_llm.distributed.expert_load import ExpertLoad, LoadWindow


def test_counts_are_those_of_the_choices():
    load = ExpertLoad(3, 7, torch.device("cpu"))
    expected = torch.zeros(3, 7, dtype=torch.int64)
    for layer in (0, 2, 2, 1, 0):
        for dtype in (torch.int32, torch.int64):
            ids = torch.randint(0, 7, (torch.randint(0, 30, ()), 3), dtype=dtype)
            load.counter(layer)(ids, torch.ones(ids.shape))
            expected[layer] += torch.bincount(ids.flatten(), minlength=7)
    assert torch.equal(load.take(), expected)
    assert load.take().sum() == 0


def test_a_window_forgets_the_oldest():
    window = LoadWindow(2)
    for value in (1, 10, 100):
        window.add(torch.full((2, 2), value))
    assert torch.equal(window.total(), torch.full((2, 2), 110))
