# SPDX-License-Identifier: Apache-2.0
"""Tests of the rows of a step that get logits."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rtp_llm.attention.model_inputs import NO_INPUTS
from rtp_llm.device.cpu import CpuDevice
from rtp_llm.worker.model_runner import ModelRunner


class Model:
    inputs = NO_INPUTS

    @staticmethod
    def compute_logits(hidden):
        return 10 * hidden


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [0],
        [2],
        [0, 2],
        [0, 1, 2],
        # Several sequences sample from one prompt: as many rows as tokens, but not one of each.
        [2, 2, 2],
        [0, 2, 2],
        [2, 2, 2, 2],
        [0, 1, 2, 2],
    ],
)
def test_logits_are_those_of_the_rows(rows):
    runner = ModelRunner(Model(), SimpleNamespace(), CpuDevice())
    hidden = torch.arange(3.0)[:, None]
    logits = runner.logits(hidden, np.array(rows, np.int32))
    assert logits[:, 0].tolist() == [10.0 * row for row in rows]
