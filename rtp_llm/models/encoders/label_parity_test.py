# SPDX-License-Identifier: Apache-2.0
"""Labels of texts and of tokens by random encoders are those of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rtp_llm.request.params import PoolingParams
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.encoder_models import save_encoder
from rtp_llm.testing.models.transformers_models import random_prompt

NAMES = {
    "bert": "Bert",
    "distilbert": "DistilBert",
    "gte": "Gte",
    "modernbert": "ModernBert",
    "mpnet": "MPNet",
    "xlm_roberta": "XLMRoberta",
}
PROMPTS = [random_prompt(length, seed=length) for length in (1, 30, 90)]


def outcomes(engine: TinyEngine, params: PoolingParams) -> list[torch.Tensor]:
    requests = [engine.add_request(prompt, params) for prompt in PROMPTS]
    engine.run()
    return [torch.tensor(engine.outcomes[request, 0].pooled) for request in requests]


@torch.inference_mode()
def expected(reference: Any, prompt: list[int]) -> torch.Tensor:
    logits: torch.Tensor = reference(input_ids=torch.tensor([prompt])).logits[0]
    return logits


@pytest.mark.parametrize("kind", NAMES)
def test_texts_and_tokens(kind: str, tmp_path: Path) -> None:
    more = {"classifier_bias": True} if kind == "modernbert" else {}
    name = f"{NAMES[kind]}ForSequenceClassification"
    reference = save_encoder(tmp_path / "texts", kind, of=name, num_labels=3, **more)
    engine = TinyEngine(tmp_path / "texts")
    for activates in (False, True):
        params = PoolingParams(task="classify", use_activation=activates)
        for prompt, found in zip(PROMPTS, outcomes(engine, params), strict=True):
            wanted = expected(reference, prompt)
            wanted = wanted.softmax(-1) if activates else wanted
            torch.testing.assert_close(found.flatten(), wanted, rtol=1e-4, atol=1e-4)
    name = f"{NAMES[kind]}ForTokenClassification"
    reference = save_encoder(tmp_path / "tokens", kind, of=name, num_labels=2)
    engine = TinyEngine(tmp_path / "tokens")
    plain = PoolingParams(task="token_classify", use_activation=False)
    for params in (plain, PoolingParams(task="reward")):
        for prompt, found in zip(PROMPTS, outcomes(engine, params), strict=True):
            wanted = expected(reference, prompt)
            torch.testing.assert_close(found.view(-1, 2), wanted, rtol=1e-4, atol=1e-4)


def test_modernbert_may_pool_the_mean(tmp_path: Path) -> None:
    name = "ModernBertForSequenceClassification"
    reference = save_encoder(
        tmp_path, "modernbert", of=name, num_labels=1, classifier_pooling="mean", norm_bias=False
    )
    engine = TinyEngine(tmp_path)
    assert engine.ready.tasks == ("score", "classify", "reward")
    assert engine.ready.scored == "mean"
    found = outcomes(engine, PoolingParams(task="score", use_activation=True))
    for prompt, score in zip(PROMPTS, found, strict=True):
        wanted = expected(reference, prompt).sigmoid()
        torch.testing.assert_close(score.flatten(), wanted, rtol=1e-4, atol=1e-4)


def test_pairs_of_texts_have_two_token_types(tmp_path: Path) -> None:
    """Alone and among prompts of one text; models without types take no notice."""
    for kind in ("bert", "xlm_roberta"):
        name = f"{NAMES[kind]}ForSequenceClassification"
        reference = save_encoder(tmp_path / kind, kind, of=name, num_labels=1)
        engine = TinyEngine(tmp_path / kind)
        params = PoolingParams(task="score", use_activation=False)
        begins = (0, 12, 89)
        requests = [
            engine.add_request(prompt, params, second_text=begin)
            for prompt, begin in zip(PROMPTS, begins, strict=True)
        ]
        engine.run()
        for request, prompt, begin in zip(requests, PROMPTS, begins, strict=True):
            types = [int(0 < begin <= place and kind == "bert") for place in range(len(prompt))]
            inputs = {"input_ids": prompt, "token_type_ids": types}
            with torch.inference_mode():
                tensors = {key: torch.tensor([value]) for key, value in inputs.items()}
                wanted = reference(**tensors).logits[0]
            found = torch.tensor(engine.outcomes[request, 0].pooled)
            torch.testing.assert_close(found.flatten(), wanted, rtol=1e-4, atol=1e-4)
