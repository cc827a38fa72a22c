# SPDX-License-Identifier: Apache-2.0
"""A sampling step asks the host for nothing: no copy to it, no wait for the device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from rtp_llm import ops
from rtp_llm.testing.sampling_rows import random_logits, random_settings

ROWS, VOCAB, HISTORY = 9, 5000, 40


@pytest.fixture(autouse=True)
def waits_are_errors() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch.cuda.set_sync_debug_mode("default")


def test_a_step_copies_nothing_to_the_host() -> None:
    logits, options = random_logits(ROWS, VOCAB, "plain"), random_settings(ROWS, VOCAB)
    tokens = torch.randint(0, VOCAB, (ROWS * HISTORY,), dtype=torch.int32)
    cu_tokens = HISTORY * torch.arange(ROWS + 1, dtype=torch.int32)
    ids = torch.arange(ROWS, dtype=torch.int32)
    masks = torch.full((ROWS, -(-VOCAB // 32)), -1, dtype=torch.int32)
    factors, sizes = torch.full((ROWS,), 1.25), torch.full((ROWS,), 2, dtype=torch.int32)
    generated = torch.arange(ROWS)
    one = ROWS * torch.arange(2, dtype=torch.int32)  # a group of all rows
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as traced:
        ops.apply_penalties(logits, tokens, cu_tokens, generated, factors, factors, factors)
        ops.ban_repeated_ngrams(logits, tokens, cu_tokens, sizes)
        ops.apply_token_bitmask(logits, masks, ids)
        ops.add_logit_bias(logits, ids, ids, factors)
        drawn, _ = ops.sample(logits, *options)
        ops.rejection_sample(logits, *options, drawn, logits)
        _, values, best = ops.top_logprobs(logits, drawn, 5)
        ops.select_beams(values, best, ids, factors, one, ids[:2], factors[:1], drawn, one, 10)
        torch.cuda.set_sync_debug_mode("default")  # the end of a trace may wait
    names = {event.name for event in traced.events()}
    assert all(any(kernel in name for name in names) for kernel in ("sample_rows", "verify_rows"))
    assert not [name for name in names if "DtoH" in name or "Memcpy" in name]


def test_the_detector_finds_a_wait() -> None:
    drawn = torch.ones(3)
    torch.cuda.set_sync_debug_mode("error")
    with pytest.raises(RuntimeError, match="synchronizing"):
        drawn.sum().item()
