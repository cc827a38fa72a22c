# SPDX-License-Identifier: Apache-2.0
"""Requests that are forked in the middle of decoding, and what their sequences must agree on."""

from __future__ import annotations

from typing import Any

from rtp_llm.testing.engine.tiny_engine import Outcome, TinyEngine
from rtp_llm.testing.models.transformers_models import random_prompt

SEED = 7
# Of one sequence each: all settings that a slot has.
OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "logprobs": 2},
    {"temperature": 0.9, "top_p": 0.9, "min_p": 0.01, "typical_p": 0.95},
    {"repetition_penalty": 1.3, "presence_penalty": 0.5, "temperature": 1.0, "top_k": 5},
    {"frequency_penalty": 0.4, "no_repeat_ngram_size": 3, "logprob_token_ids": (3, 5)},
    {"min_tokens": 20, "stop_token_ids": (3, 4, 5)},
    {"bad_words_token_ids": ((3, 4), (5,)), "temperature": 1.0},
    {"allowed_token_ids": (3, 4, 6, 8), "temperature": 1.0},
    {"logit_bias": {5: 2.0, 6: -3.0}, "temperature": 1.0, "speculate": False},
]
TWIN, OTHER, CHANGED = 1, 2, 3


def step_until(engine: TinyEngine, request: int, count: int) -> Outcome:
    """Step until sequence 0 of a request has ``count`` tokens; its outcome."""
    outcome = engine.outcomes[request, 0]
    while len(outcome.tokens) < count:
        engine.step()
    return outcome


def play_forks(
    engine: TinyEngine, vocabulary: int, option_sets: list[dict[str, Any]] = OPTIONS
) -> None:
    """Fork a request with each of the options.

    Its forks: a twin with the same seed, another one, and one with another last token."""
    for number, options in enumerate(option_sets):
        prompt = random_prompt(5 + 7 * number, number, vocabulary)
        request = engine.add(prompt, seed=SEED, max_tokens=24, ignore_eos=True, **options)
        outcome = step_until(engine, request, 5 + number % 5)
        assert outcome.finish is None
        engine.fork(request, [TWIN], seeds=[SEED])
        engine.fork(request, [OTHER])
        token = next(each for each in (3, 4) if each != outcome.tokens[-1])
        engine.fork(request, [CHANGED], last_tokens=[token])
    engine.run()
    engine.assert_all_free()


def check_forks(engine: TinyEngine) -> None:
    """Twins are equal; where tokens are drawn some others differ."""
    requests = {request for request, _ in engine.outcomes}
    differ = 0
    for request in requests:
        source, twin = engine.outcomes[request, 0], engine.outcomes[request, TWIN]
        assert (twin.tokens, twin.finish) == (source.tokens, source.finish), request
        assert [each.top for each in twin.logprobs] == [each.top for each in source.logprobs]
        differ += engine.outcomes[request, OTHER].tokens != source.tokens
        assert engine.outcomes[request, CHANGED].finish is not None
    assert differ > len(requests) // 3
