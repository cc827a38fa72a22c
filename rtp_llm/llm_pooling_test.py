# SPDX-License-Identifier: Apache-2.0
"""LLM.encode, classify, reward, score and rerank, against transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity

from rtp_llm import LLM, PoolingParams
from rtp_llm.testing.engine.tiny_llm import SMALL
from rtp_llm.testing.light_transformers import light_transformers
from rtp_llm.testing.model_folders import byte_level
from rtp_llm.testing.models.transformers_models import randomize, save_model
from rtp_llm.text.rerank_template import conversation_text

with light_transformers():
    from transformers import AutoModelForSequenceClassification

DOCUMENTS = ["a garden", "a house with a garden", "b"]
CLOSE = {"rtol": 1e-3, "atol": 1e-4}


def save(folder: Path, labels: int) -> Any:
    """A random classifier with a tokenizer; returns transformers' model."""
    tokenizer = byte_level()
    size = tokenizer.get_vocab_size()
    config = save_model(
        folder, "qwen3", seed=1, vocab_size=size, max_position_embeddings=512
    ).config
    config.num_labels, config.pad_token_id = labels, 0
    torch.manual_seed(2)
    model: Any = AutoModelForSequenceClassification.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            randomize(name, parameter)
    with light_transformers():
        model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return model.eval()


def logits_of(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(input_ids=torch.tensor([ids])).logits[0]
    return logits


@pytest.fixture(scope="module", name="scorer")
def _scorer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LLM, Any]]:
    folder = tmp_path_factory.mktemp("scorer")
    model = save(folder, 1)
    with LLM(folder, dtype="float32", **SMALL) as llm:
        yield llm, model


def test_score_and_rerank(scorer: tuple[LLM, Any]) -> None:
    llm, model = scorer
    outputs = llm.score("a house", DOCUMENTS)
    for document, output in zip(DOCUMENTS, outputs, strict=True):
        text = llm.tokenizer.decode(output.prompt_token_ids, skip_special_tokens=False)
        assert conversation_text("a house", document) in text
        expected = logits_of(model, output.prompt_token_ids).sigmoid()
        assert output.outputs.score == pytest.approx(float(expected), rel=1e-3)
    ranked = llm.rerank("a house", DOCUMENTS, top_n=2)
    scores = [output.outputs.score for output in outputs]
    order = sorted(range(3), key=lambda at: -scores[at])[:2]
    assert [(each.index, each.document) for each in ranked] == [(at, DOCUMENTS[at]) for at in order]
    assert ranked[0].relevance_score == pytest.approx(scores[order[0]])
    three = llm.score(["a", "b", "c"], DOCUMENTS, truncate_prompt_tokens=-1)
    assert len(three) == 3
    raw = llm.score("a house", DOCUMENTS, pooling_params=PoolingParams(use_activation=False))
    logits = torch.tensor([each.outputs.score for each in raw])
    torch.testing.assert_close(logits.sigmoid(), torch.tensor(scores), **CLOSE)
    with pytest.raises(ValueError, match="2 queries and 3 documents"):
        llm.score(["a", "b"], DOCUMENTS)


def test_reward_and_classify_with_one_label(scorer: tuple[LLM, Any]) -> None:
    llm, model = scorer
    (output,) = llm.reward("a house")
    expected = logits_of(model, output.prompt_token_ids)
    torch.testing.assert_close(torch.tensor(output.outputs.data), expected, **CLOSE)
    (classified,) = llm.classify("a house")
    assert classified.outputs.probs == pytest.approx(expected.sigmoid().tolist(), rel=1e-3)
    with pytest.raises(ValueError, match="is served for score and classify and reward, not to"):
        llm.embed("a house")


def test_classify(tmp_path: Path) -> None:
    model = save(tmp_path, 3)
    with LLM(tmp_path, dtype="float32", **SMALL) as llm:
        for output in llm.classify(DOCUMENTS):
            expected = logits_of(model, output.prompt_token_ids).softmax(0)
            assert output.outputs.probs == pytest.approx(expected.tolist(), rel=1e-3)
            assert output.outputs.num_classes == 3
        (encoded,) = llm.encode("a house")  # by default the model's first task
        np.testing.assert_allclose(encoded.outputs.data.sum(), 1, rtol=1e-5)


def test_a_model_that_embeds_scores_by_cosine(tmp_path: Path) -> None:
    tokenizer = byte_level()
    save_model(tmp_path, "llama", seed=1, vocab_size=tokenizer.get_vocab_size())
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert "architectures" in json.loads((tmp_path / "config.json").read_text())
    with LLM(tmp_path, dtype="float32", task="embed", **SMALL) as llm:
        vectors = llm.embed(["a house", *DOCUMENTS])
        query, *others = [torch.tensor(each.outputs.embedding) for each in vectors]
        expected = [float(cosine_similarity(query, other, dim=0)) for other in others]
        found = [each.outputs.score for each in llm.score("a house", DOCUMENTS)]
        assert found == pytest.approx(expected, abs=1e-5)
        assert llm.rerank("a house", DOCUMENTS)[0].index == max(range(3), key=expected.__getitem__)
        params = PoolingParams(pooling_type="all", normalize=False)
        (rows,) = llm.encode("a house", params, pooling_task="embed")
        assert rows.outputs.data.shape == (len(rows.prompt_token_ids), len(query))
