# SPDX-License-Identifier: Apache-2.0
"""Served cross-encoders and classifiers give the scores and labels of transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from rtp_llm.testing.light_transformers import light_transformers
from rtp_llm.testing.models.encoder_models import save_encoder
from rtp_llm.testing.server_processes import REAL, TIMEOUT, process

with light_transformers():
    from transformers import BertTokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["which", "house", "has", "a", "garden", "the", "one", "there", ".", "?"]
QUERY = "Which house has a garden?"
DOCUMENTS = ["The one there.", "a garden", "", "a house. " * 30]
FLAGS = ("--dtype", "float32", "--num-threads", "1", "--served-model-name", "tiny")
CLOSE = 1e-4

Logits = Callable[..., torch.Tensor]


def served(folder: Path, labels: int, *flags: str) -> Iterator[tuple[httpx.Client, Logits]]:
    """A client of a server, and what transformers gives for a text or a pair: float32 [labels]."""
    name = "BertForSequenceClassification"
    model = save_encoder(folder, "bert", of=name, num_labels=labels)
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *WORDS]))
    tokenizer = BertTokenizer.from_pretrained(folder)

    def logits(*texts: str) -> torch.Tensor:
        inputs = tokenizer([texts if len(texts) > 1 else texts[0]], return_tensors="pt")
        with torch.inference_mode():
            found: torch.Tensor = model(**inputs).logits[0]
        return found

    with (
        process(*FLAGS, *flags, command=REAL, model=folder) as server,
        httpx.Client(base_url=server.url, timeout=TIMEOUT) as client,
    ):
        yield client, logits


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, Logits]]:
    yield from served(tmp_path_factory.mktemp("reranker"), 1)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, Logits]]:
    yield from served(tmp_path_factory.mktemp("classifier"), 3)


def post(client: httpx.Client, path: str, **body: Any) -> Any:
    answer = client.post(path, json={"model": "tiny", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_pairs_are_scored_and_ranked(reranker: tuple[httpx.Client, Logits]) -> None:
    client, logits = reranker
    raw = [float(logits(QUERY, each)) for each in DOCUMENTS]
    scores = torch.tensor(raw).sigmoid().tolist()
    order = sorted(range(len(scores)), key=lambda at: -scores[at])
    answer = post(client, "/score", text_1=QUERY, text_2=DOCUMENTS)
    assert [each["score"] for each in answer["data"]] == pytest.approx(scores, abs=CLOSE)
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        answer = post(client, path, query=QUERY, documents=DOCUMENTS, top_n=3)
        assert [each["index"] for each in answer["results"]] == order[:3]
        found = [each["relevance_score"] for each in answer["results"]]
        assert found == pytest.approx([scores[at] for at in order[:3]], abs=CLOSE)
    ranked = post(client, "/rerank", query=QUERY, texts=DOCUMENTS, raw_scores=True)
    assert [each["index"] for each in ranked] == order
    found = [each["score"] for each in ranked]
    assert found == pytest.approx([raw[at] for at in order], abs=CLOSE)
    pairs = [[QUERY, each] for each in DOCUMENTS]
    found = [label["score"] for (label,) in post(client, "/predict", inputs=pairs)]
    assert found == pytest.approx(scores, abs=CLOSE)
    refused = client.post("/v1/embeddings", json={"model": "tiny", "input": "a"})
    assert refused.status_code == 400 and "It answers /rerank" in refused.text
    refused = client.post("/rerank", json={"query": QUERY, "documents": ["house " * 400]})
    assert refused.status_code == 400 and "takes at most 320" in refused.text


def test_texts_and_pairs_are_labelled(classifier: tuple[httpx.Client, Logits]) -> None:
    client, logits = classifier
    expected = [logits(each).softmax(0) for each in DOCUMENTS]
    data = post(client, "/classify", input=DOCUMENTS)["data"]
    for probs, each in zip(expected, data, strict=True):
        assert each["probs"] == pytest.approx(probs.tolist(), abs=CLOSE)
        assert each["label"] == f"LABEL_{int(probs.argmax())}"
    inputs = [["a garden"], [QUERY, "a house"]]
    found = post(client, "/predict", inputs=inputs, raw_scores=True)
    for texts, labels in zip(inputs, found, strict=True):
        plain = logits(*texts)
        assert [each["label"] for each in labels] == [f"LABEL_{at}" for at in (-plain).argsort()]
        ranked = plain.sort(descending=True).values.tolist()
        assert [each["score"] for each in labels] == pytest.approx(ranked, abs=CLOSE)
    (pooled,) = post(client, "/pooling", input=["a garden"], task="reward")["data"]
    assert pooled["data"] == pytest.approx(logits("a garden").tolist(), abs=CLOSE)
    assert post(client, "/classify", input=[QUERY] * 300)["usage"]["total_tokens"] == 300 * 8
    refused = client.post("/rerank", json={"query": "a", "documents": ["b"]})
    assert refused.status_code == 400 and "served for classify and reward" in refused.text
