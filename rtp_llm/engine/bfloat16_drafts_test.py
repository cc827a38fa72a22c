# SPDX-License-Identifier: Apache-2.0
"""Drafts in bfloat16: tokens are those of the model wherever rounding does not decide.

Teacher forcing: the model computes every answer again as one prompt, so that one close call does
not hide what comes after it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rtp_llm.testing.engine.drafting_models import WORDS, accepted, run, save_drafting_model
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.hybrid_model import plain_logits
from rtp_llm.testing.models.transformers_models import random_prompt

# Logits are about 20, where bfloat16 numbers are 1/8 apart; each of two may be rounded another way.
ROUNDING = 0.25
PROMPTS = {1 + n: random_prompt(5 + 6 * n, seed=n, vocabulary=WORDS) for n in range(10)}


def play(engine: TinyEngine) -> None:
    for prompt in PROMPTS.values():
        engine.add(prompt, ignore_eos=True, max_tokens=40)
        engine.step()


# Of no mixture of experts: a rounded router logit may choose another expert, there or here.
@pytest.mark.parametrize(
    "kind",
    [
        "mtp qwen3_5",
        "eagle3 llama",
        "eagle3 qwen3_5",
        "draft-model mistral qwen3",
        "ngram qwen3_5",
        "suffix mistral",
    ],
)
def test_tokens_are_the_likeliest_where_rounding_does_not_decide(tmp_path: Path, kind: str) -> None:
    model = save_drafting_model(tmp_path, kind)
    drafting: dict[str, Any] = {**model.settings, "num_speculative_tokens": 5}
    plain = run(model.folder, play, dtype="bfloat16")
    engine = run(model.folder, play, dtype="bfloat16", enable_overlap=True, **drafting)
    assert accepted(engine) > 10
    decided = 0
    for key, outcome in engine.outcomes.items():
        prompt, tokens = PROMPTS[key[0]], torch.tensor(outcome.tokens)
        whole = prompt + outcome.tokens
        rows = plain_logits(engine.built.worker.runner.model, whole)[len(prompt) - 1 : -1]
        best = rows.topk(2).values
        is_decided = best[:, 0] - best[:, 1] > ROUNDING
        assert torch.equal(rows.argmax(1)[is_decided], tokens[is_decided])
        same = tokens == torch.tensor(plain.outcomes[key].tokens)
        before = torch.cat([same.new_ones(1), same[:-1]]).cumprod(0) > 0
        assert same[is_decided & before].all(), "as without drafts, up to the first close call"
        decided += int(is_decided.sum())
    assert decided > 0.8 * 40 * len(PROMPTS)
