# SPDX-License-Identifier: Apache-2.0
"""Small models with what drafts for them, and what engines over them must agree on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.draft_models import DraftModelOracle
from rtp_llm.testing.models.eagle3_models import Eagle3Oracle, save_eagle3_head
from rtp_llm.testing.models.mtp_models import MtpOracle, save_mtp_model
from rtp_llm.testing.models.transformers_models import random_prompt, save_model

WORDS = 11  # so few that random drafts are right now and then
# Heads of their models: the method, and the model's kind.
HEADS = (
    "mtp qwen3_5",
    "mtp qwen3_5_moe",
    "mtp qwen3_next",
    "mtp deepseek_v3",
    "eagle3 llama",
    "eagle3 qwen3_5",
)
# A model and another one that drafts for it, whose cache is in the same group, in another one,
# and in one of windows; and what else their configs have.
DRAFT_MODELS = (
    "draft-model llama llama",
    "draft-model mistral qwen3",
    "draft-model qwen3_5 mistral",
)
_TARGETS: dict[str, dict[str, Any]] = {"mistral": {"sliding_window": 24}}
_DRAFTS: dict[str, dict[str, Any]] = {
    "llama": {"num_hidden_layers": 2},
    "qwen3": {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32},
    "mistral": {"num_attention_heads": 2, "num_key_value_heads": 1, "sliding_window": 9},
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7, "seed": 4},
    {"temperature": 1.0, "top_k": 3, "n": 3, "logprobs": 2},
    {"repetition_penalty": 1.2, "presence_penalty": -1.0},
    {"temperature": 1.0, "no_repeat_ngram_size": 3, "frequency_penalty": 0.1},
    {"min_tokens": 12, "stop_token_ids": (3, 4, 5)},
    {"bad_words_token_ids": ((3, 4), (5,)), "temperature": 1.0},
    {"max_tokens": 1},
    {"max_tokens": 2, "temperature": 1.0},
    {"prompt_logprobs": 2, "max_tokens": 5},
    {"logit_bias": {5: 2.0, 6: -3.0}, "temperature": 1.0, "speculate": False},
]
TIGHT: dict[str, Any] = {
    "seq_size_per_block": 4,
    "max_seq_len": 100,
    "max_running_requests": 12,
    "max_batch_tokens_size": 64,
}
Oracle: TypeAlias = MtpOracle | Eagle3Oracle | DraftModelOracle
Play = Callable[[TinyEngine], Any]


@dataclass
class Model:
    """A folder, what drafts in PyTorch, and the settings of an engine that drafts; `plain`: an
    engine without drafts, once a test has run it."""

    folder: Path
    kind: str
    settings: dict[str, Any]
    oracle: Oracle | None = None
    plain: TinyEngine | None = None
    _expected: dict[tuple[tuple[int, ...], int], tuple[list[int], float]] = field(
        default_factory=dict
    )

    def drafts(self, tokens: Sequence[int], count: int) -> tuple[list[int], float]:
        """See `drafts` of the oracle, which computes them once."""
        assert self.oracle is not None
        key = tuple(tokens), count
        if key not in self._expected:
            self._expected[key] = self.oracle.drafts(tokens, count)
        return self._expected[key]


def save_drafting_model(folder: Path, named: str) -> Model:
    """Save a random model; `named` is the drafting method, the kind of the model, and the kind of
    its draft model if it has one."""
    method, kind, *draft = named.split()
    path, head = folder / "model", folder / "head"
    settings = {"speculative": method, "num_speculative_tokens": 3}
    if method == "mtp":
        _, oracle = save_mtp_model(path, kind, vocab_size=WORDS)
        return Model(path, kind, settings, oracle)
    if draft:
        save_model(path, kind, vocab_size=WORDS, **_TARGETS.get(kind, {}))
        small = save_model(head, draft[0], seed=5, vocab_size=WORDS, **_DRAFTS[draft[0]])
        settings["speculative_model"] = str(head)
        return Model(path, kind, settings, DraftModelOracle(small))
    target = save_model(path, kind, vocab_size=WORDS)
    if method != "eagle3":
        return Model(path, kind, settings)
    settings["speculative_model"] = str(head)
    return Model(path, kind, settings, save_eagle3_head(head, target, draft_vocab_size=WORDS - 2))


def everything(engine: TinyEngine) -> None:
    """Requests of all option_sets, arriving between steps."""
    for number in range(2 * len(OPTIONS)):
        options = {"ignore_eos": True, "max_tokens": 24, **OPTIONS[number % len(OPTIONS)]}
        prompt = random_prompt(3 + 7 * number % 60, seed=number % 9, vocabulary=WORDS)
        engine.add(prompt, **options)
        if number % 3 == 0:
            engine.step()


def run(folder: Path, play: Play = everything, **settings: Any) -> TinyEngine:
    """An engine that has played to the end."""
    engine = TinyEngine(folder, seed=3, **settings)
    play(engine)
    engine.run()
    engine.assert_all_free()
    return engine


def compare(engine: TinyEngine, plain: TinyEngine | None) -> None:
    """The same tokens; log-probabilities but for the rounding of states that take in several."""
    assert plain is not None
    for key, outcome in engine.outcomes.items():
        expected = plain.outcomes[key]
        assert (outcome.tokens, outcome.finish) == (expected.tokens, expected.finish), key
        for mine, other in zip(outcome.logprobs, expected.logprobs, strict=True):
            assert [token for token, _ in mine.top] == [token for token, _ in other.top]
            assert mine.logprob == pytest.approx(other.logprob, abs=1e-3)
        assert outcome.prompt_logprobs.keys() == expected.prompt_logprobs.keys()


def accepted(engine: TinyEngine) -> int:
    """Drafts that were right."""
    return sum(outcome.accepted_drafts for outcome in engine.outcomes.values())
