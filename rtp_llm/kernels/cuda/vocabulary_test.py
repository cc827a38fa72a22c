"""Sampling at the sizes of real vocabularies, where keys share most of their digits."""

from __future__ import annotations

import pytest
import torch

from rtp_llm import ops
from rtp_llm.ops import sampling_reference as reference
from rtp_llm.ops.sampling_rows_for_tests import random_logits, random_settings

VOCAB = 151_936


@pytest.mark.parametrize("kind", ["plain", "peaked", "tied", "equal", "masked"])
def test_tokens_equal_the_reference(kind: str) -> None:
    torch.manual_seed(0)
    logits = random_logits(32, VOCAB, kind)
    options = random_settings(32, VOCAB)
    tokens, ok = ops.sample(logits, *options)
    expected, expected_ok = reference.sample_reference(logits, *options)
    assert torch.equal(ok, expected_ok)
    assert torch.equal(tokens, expected)
    assert torch.equal(ops.sample(logits, *options)[0], tokens)


@pytest.mark.parametrize("k", [1, 20, 5000])
def test_top_logprobs_equal_the_reference(k: int) -> None:
    torch.manual_seed(0)
    logits = random_logits(8, VOCAB, "tied" if k == 20 else "plain")
    tokens = torch.randint(0, VOCAB, (8,), dtype=torch.int32)
    actual = ops.top_logprobs(logits, tokens, k)
    expected = reference.top_logprobs_reference(logits, tokens, k)
    torch.testing.assert_close(actual[:2], expected[:2], rtol=1e-6, atol=2e-5)
    assert torch.equal(actual[2], expected[2])
