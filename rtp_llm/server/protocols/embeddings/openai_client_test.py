# SPDX-License-Identifier: Apache-2.0
"""OpenAI's own client, which asks for base64 and decodes it; the bodies of Open WebUI."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import openai
import pytest

from rtp_llm.request.params import PoolingParams
from rtp_llm.testing.server.fake_engine import pool_numbers
from rtp_llm.testing.server.serving import demo_tokenizer, fake_engine, listening

TEXTS = ["a house", "a garden", ""]


@pytest.fixture(scope="module", name="url")
def _url() -> Iterator[str]:
    with listening(fake_engine()) as url:
        yield url


def expected(text: str) -> list[float]:
    return pool_numbers(demo_tokenizer().encode(text), PoolingParams())


def test_openai(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    for more in ({}, {"encoding_format": "float"}):
        answer = client.embeddings.create(model="demo", input=TEXTS, **more)  # type: ignore[call-overload]
        for text, each in zip(TEXTS, answer.data, strict=True):
            assert each.embedding == pytest.approx(expected(text))
        assert answer.usage.total_tokens == sum(len(demo_tokenizer().encode(t)) for t in TEXTS)
    ids = client.embeddings.create(model="demo", input=[[5, 6], [7]])
    assert [each.embedding[0] for each in ids.data] == [2, 1]
    with pytest.raises(openai.BadRequestError, match="input: must not be empty"):
        client.embeddings.create(model="demo", input=[])
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.embeddings.create(model="other", input="a")


def test_open_webui(url: str) -> None:
    """What its retrieval sends: embeddings (OpenAI's or Ollama's engine), and an external
    reranker's request."""
    with httpx.Client(base_url=url) as client:
        answer = client.post("/v1/embeddings", json={"input": TEXTS, "model": "demo"}).json()
        assert answer["data"][0]["embedding"] == pytest.approx(expected(TEXTS[0]))
        answer = client.post("/api/embed", json={"input": TEXTS, "model": "demo"}).json()
        assert answer["embeddings"][1] == pytest.approx(expected(TEXTS[1]))
        body = {"model": "demo", "query": "a", "documents": TEXTS[:2], "top_n": 2}
        results = client.post("/v1/rerank", json=body).json()["results"]
        assert sorted(each["index"] for each in results) == [0, 1]
        assert all(isinstance(each["relevance_score"], float) for each in results)
