# SPDX-License-Identifier: Apache-2.0
"""Tests of sampling settings by slot."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rtp_llm.device import resolve_device
from rtp_llm.request.sampling_params import SamplingParams
from rtp_llm.worker.heads import sampling_flags as flag
from rtp_llm.worker.heads.slot_settings import SlotSettings


def test_settings_come_back_in_the_order_of_the_rows():
    settings = SlotSettings(10, resolve_device("cpu"))
    settings.put([4], SamplingParams(temperature=0.5, top_k=7, min_p=0.25), [-3])
    settings.put(
        [1, 9],
        SamplingParams(
            top_p=0.75,
            repetition_penalty=1.5,
            presence_penalty=0.5,
            frequency_penalty=-0.5,
            no_repeat_ngram_size=3,
        ),
        [2**62, 5],
    )
    steps = np.array([3, 0, 2], np.int64)
    rows, others = settings.gather(np.array([9, 4, 1], np.int32), steps)
    assert [other.tolist() for other in others] == [[3, 0, 2]]
    assert rows.temperature.tolist() == [1.0, 0.5, 1.0]
    assert rows.top_p.tolist() == [0.75, 1.0, 0.75]
    assert rows.min_p.tolist() == [0.0, 0.25, 0.0]
    assert rows.repetition.tolist() == [1.5, 1.0, 1.5]
    assert rows.presence.tolist() == [0.5, 0.0, 0.5]
    assert rows.frequency.tolist() == [-0.5, 0.0, -0.5]
    assert rows.top_k.tolist() == [0, 7, 0]
    assert rows.ngram_size.tolist() == [3, 0, 3]
    assert rows.seeds.tolist() == [5, -3, 2**62]
    assert all(column.is_contiguous() for column in rows)


@pytest.mark.parametrize("params", [SamplingParams(temperature=0), SamplingParams(top_k=1)])
def test_greedy_requests_have_temperature_zero(params):
    settings = SlotSettings(4, resolve_device("cpu"))
    settings.put([2], params, [1])
    rows, _ = settings.gather(np.array([2], np.int32))
    assert rows.temperature.tolist() == [0.0]
    assert flag.sampling_flags(params) == 0


def test_greedy_rows_are_neutral():
    rows = SlotSettings(4, resolve_device("cpu")).greedy(3)
    assert rows.temperature.tolist() == [0.0] * 3
    assert rows.repetition.tolist() == rows.top_p.tolist() == [1.0] * 3
    assert rows.top_k.dtype == rows.ngram_size.dtype == torch.int32
    assert rows.seeds.dtype == torch.int64


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, flag.RANDOM),
        ({"repetition_penalty": 1.1}, flag.RANDOM | flag.PENALTIES),
        ({"presence_penalty": 0.1}, flag.RANDOM | flag.PENALTIES),
        ({"frequency_penalty": 0.1, "temperature": 0}, flag.PENALTIES),
        ({"no_repeat_ngram_size": 2, "temperature": 0}, flag.NGRAM),
        ({"logit_bias": {1: 2.0}, "temperature": 0}, flag.BIAS),
        ({"min_tokens": 2, "temperature": 0}, flag.MIN_TOKENS),
        ({"logprobs": 0, "temperature": 0}, flag.LOGPROBS),
        ({"logprob_token_ids": [1], "temperature": 0}, flag.LOGPROBS),
        ({"allowed_token_ids": [1], "temperature": 0}, flag.ALLOWED),
        ({"bad_words_token_ids": [[1]], "temperature": 0}, flag.BIAS),
        ({"bad_words_token_ids": [[1, 2]], "temperature": 0}, flag.BAD_WORDS),
    ],
)
def test_flags_name_what_is_needed(params, expected):
    assert flag.sampling_flags(SamplingParams(**params)) == expected
    assert flag.sampling_flags(SamplingParams(**params), True) == expected | flag.PROCESSORS
