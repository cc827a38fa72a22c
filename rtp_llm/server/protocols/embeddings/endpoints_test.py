# SPDX-License-Identifier: Apache-2.0
"""Reranking, scores, labels, and the forms of Cohere, TEI and Ollama."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rtp_llm.config.tasks import Task
from rtp_llm.request.params import PoolingParams
from rtp_llm.testing.server.fake_engine import FakeEngine
from rtp_llm.testing.server.serving import (
    Served,
    demo_folder,
    demo_tokenizer,
    fake_engine,
    run,
    served,
)
from rtp_llm.text.rerank_template import conversation_text
from rtp_llm.text.tokenizer import Tokenizer

DOCUMENTS = ["a garden with a house", "a", "a house"]
RERANK = {"query": "a house", "documents": DOCUMENTS}


def pooling(
    *tasks: Task, pool: Callable[..., list[float]] | None = None, **facts: Any
) -> FakeEngine:
    engine = fake_engine()
    engine.next_ready = msgspec.structs.replace(
        engine.next_ready, tasks=tasks, **{"vector_size": 4, **facts}
    )
    if pool is not None:
        engine.pool = pool
    return engine


def ids_of(text: str, special: bool = True) -> list[int]:
    return demo_tokenizer().encode(text, special)


def by_length(prompt: list[int], params: PoolingParams) -> list[float]:
    assert params.task == "score"
    return [1 / len(prompt)]


def prompts(server: Served) -> list[list[int]]:
    return [*server.engine.batches[-1].prompts()]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank"])
@run
async def test_the_best_documents_come_first(path: str) -> None:
    async with served(pooling("score", pool=by_length)) as server:
        answer = (await server.post(path, **RERANK)).json()
        pairs = [demo_tokenizer().encode_batch([("a house", each)])[0] for each in DOCUMENTS]
        assert prompts(server) == pairs
        order = sorted(range(3), key=lambda at: len(pairs[at]))
        assert [each["index"] for each in answer["results"]] == order
        for each in answer["results"]:
            assert each["document"] == {"text": DOCUMENTS[each["index"]]}
            expected = 1 / len(pairs[each["index"]])
            assert each["relevance_score"] == pytest.approx(expected)
        tokens = sum(map(len, pairs))
        assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
        assert answer["model"] == "demo" and answer["id"].startswith("rerank-")
        answer = (await server.post(path, **RERANK, top_n=2, return_documents=False)).json()
        assert [each["index"] for each in answer["results"]] == order[:2]
        assert all("document" not in each for each in answer["results"])
        objects = [{"text": each} for each in DOCUMENTS]
        answer = await server.post(path, query="a house", documents=objects, top_n=0)
        assert len(answer.json()["results"]) == 3


@run
async def test_cohere_and_tei_rerank() -> None:
    async with served(pooling("score", pool=by_length)) as server:
        answer = (await server.post("/v2/rerank", **RERANK, max_tokens_per_doc=4096)).json()
        assert {*answer} == {"id", "results", "meta"}
        assert {*answer["results"][0]} == {"index", "relevance_score"}
        assert answer["meta"]["billed_units"] == {"search_units": 1}
        body = {"query": "a house", "texts": DOCUMENTS, "return_text": True, "raw_scores": True}
        ranked = (await server.post("/rerank", **body)).json()
        assert [each["text"] for each in ranked] == [DOCUMENTS[each["index"]] for each in ranked]
        assert server.engine.batches[-1].params.use_activation is False
        long = {**body, "texts": ["house " * 400]}
        refused = await server.post("/rerank", **long)
        assert refused.status_code == 400 and "takes at most 256" in refused.text
        assert (await server.post("/rerank", **long, truncate=True)).status_code == 200
        assert len(prompts(server)[0]) == 256
        query = ids_of("a house", False)
        assert prompts(server)[0][: len(query)] == query


@run
async def test_qwen3_reranker_is_asked_in_a_conversation() -> None:
    tokenizer = Tokenizer.from_folder(demo_folder())
    tokenizer.model_config = {"architectures": ["Qwen3ForCausalLM"]}
    async with served(pooling("score", pool=by_length), tokenizer) as server:
        body = {"query": "q", "documents": ["d"], "instruction": "Find it"}
        assert (await server.post("/rerank", **body)).status_code == 200
        text = tokenizer.decode(prompts(server)[0], skip_special_tokens=False)
        assert text.startswith("<|im_start|>system\nJudge whether the Document meets")
        assert text.endswith("<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")
        asked = "<Instruct>: Find it\n<Query>: q\n<Document>: d"
        assert f"<|im_start|>user\n{asked}<|im_end|>" in text
        assert asked == conversation_text("q", "d", "Find it")
        assert "<Instruct>: Given a web search query, retrieve" in conversation_text("q", "d")


def cosine(one: str, other: str) -> float:
    def vector(text: str) -> list[float]:
        ids = ids_of(text)
        return [float(len(ids)), float(ids[0]), float(ids[-1]), 0.1]

    return sum(a * b for a, b in zip(vector(one), vector(other), strict=True))


@run
async def test_a_model_that_embeds_scores_by_its_vectors() -> None:
    async with served(pooling("embed")) as server:
        answer = (await server.post("/score", text_1="a house", text_2=DOCUMENTS)).json()
        expected = [cosine("a house", each) for each in DOCUMENTS]
        assert [each["score"] for each in answer["data"]] == pytest.approx(expected, rel=1e-5)
        assert server.engine.batches[0].params.normalize is True
        answer = (await server.post("/rerank", **RERANK)).json()
        best = max(range(3), key=expected.__getitem__)
        assert answer["results"][0]["index"] == best
        inputs = {"source_sentence": "a house", "sentences": DOCUMENTS}
        found = (await server.post("/similarity", inputs=inputs)).json()
        assert found == pytest.approx(expected, rel=1e-5)
        queries = ["a", "a house", "b"]
        answer = (await server.post("/v1/score", queries=queries, documents=DOCUMENTS)).json()
        pairs = zip(queries, DOCUMENTS, strict=True)
        expected = [cosine(*pair) for pair in pairs]
        assert [each["score"] for each in answer["data"]] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"queries": ["a", "b"], "documents": ["c"]}, "2 queries and 1 documents"),
        ({"queries": "a"}, "Give one of documents and text_2"),
        ({"queries": "a", "text_1": "b", "documents": "c"}, "Give one of queries and text_1"),
        ({"queries": "a", "documents": []}, "documents: must not be empty"),
    ],
)
@run
async def test_pairs_that_are_none(body: dict[str, Any], reason: str) -> None:
    async with served(pooling("score")) as server:
        answer = await server.client.post("/score", json=body)
        assert answer.status_code == 400 and reason in answer.text


@run
async def test_labels() -> None:
    tokenizer = Tokenizer.from_folder(demo_folder())
    tokenizer.model_config = {"id2label": {"0": "bad", "1": "fair", "2": "good"}}
    async with served(pooling("classify", "reward"), tokenizer) as server:
        answer = (await server.post("/classify", input=["a", "b"])).json()
        for index, each in enumerate(answer["data"]):
            probs = [0.25, 0.5, 0.25]
            expected = {"index": index, "label": "fair", "probs": probs, "num_classes": 3}
            assert each == expected
        assert answer["object"] == "list"
        labels = (await server.post("/predict", inputs="a")).json()
        assert labels[0] == {"score": 0.5, "label": "fair"} and len(labels) == 3
        several = (await server.post("/predict", inputs=[["a"], ["b", "c"]])).json()
        assert several == [labels, labels]
        assert prompts(server)[1] == demo_tokenizer().encode_batch([("b", "c")])[0]
        await server.post("/predict", inputs=["b", "c"], raw_scores=True)
        assert prompts(server) == [demo_tokenizer().encode_batch([("b", "c")])[0]]
        assert server.engine.batches[-1].params.use_activation is False
        info = (await server.client.get("/info")).json()
        assert info["model_type"]["classifier"]["label2id"]["good"] == "2"
        assert (info["max_input_length"], info["max_client_batch_size"]) == (256, 2048)


@run
async def test_pooling_of_texts_and_tokens() -> None:
    def rows(prompt: list[int], params: PoolingParams) -> list[float]:
        return [number for token in prompt for number in (float(token), 0.5)]

    engine = pooling("token_classify", "reward", pool=rows, scored="all")
    async with served(engine) as server:
        texts = ["a", "a house with a garden"]
        answer = (await server.post("/pooling", input=texts)).json()
        for text, each in zip(texts, answer["data"], strict=True):
            assert each["data"] == [[float(token), 0.5] for token in ids_of(text)]
        answer = (await server.post("/pooling", input=texts, encoding_format="base64")).json()
        for text, each in zip(texts, answer["data"], strict=True):
            ids = ids_of(text)
            numbers = struct.unpack(f"<{2 * len(ids)}f", base64.b64decode(each["data"]))
            assert numbers[::2] == tuple(map(float, ids))
        refused = await server.post("/pooling", input="a", task="embed")
        assert refused.status_code == 400 and "served for token_classify and reward" in refused.text
    async with served(pooling("embed")) as server:
        answer = (await server.post("/pooling", input="a")).json()
        assert len(answer["data"][0]["data"]) == 4


@run
async def test_cohere_embed_in_all_types(tmp_path: Path) -> None:
    values = [0.5, -0.25, 1.0, 0.0, -1.0, 0.1, 0.2, 0.3, 0.9]
    engine = pooling("embed", pool=lambda prompt, params: values)
    async with served(engine) as server:
        types = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
        body = {"texts": ["a", "b"], "input_type": "search_query", "embedding_types": types}
        answer = (await server.post("/v2/embed", model="demo", **body)).json()
        found = answer["embeddings"]
        assert [*found] == types and all(len(found[name]) == 2 for name in types)
        assert found["float"][0] == pytest.approx(values)
        assert found["int8"][0] == [round(127 * each) for each in values]
        assert found["uint8"][0] == [round(127 * each) + 128 for each in values]
        assert found["ubinary"][0] == [0b10100111, 0b10000000]
        assert found["binary"][0] == [0b10100111 - 128, 0]
        assert struct.unpack("<9f", base64.b64decode(found["base64"][0])) == pytest.approx(values)
        assert answer["texts"] == ["a", "b"]
        tokens = len(ids_of("a")) + len(ids_of("b"))
        assert answer["meta"]["billed_units"] == {"input_tokens": tokens}
        assert answer["response_type"] == "embeddings_by_type"
        long = "house " * 400
        for cut, status in (("NONE", 400), ("END", 200), ("START", 200)):
            answered = await server.post("/v2/embed", texts=[long], truncate=cut)
            assert answered.status_code == status, answered.text
        assert prompts(server)[0][-255:] == ids_of(long)[-255:]


@run
async def test_prompts_by_name() -> None:
    async with served(pooling("embed")) as server:
        texts = {"query": "query: ", "passage": "passage: ", "other": ""}
        server.state.prompts = type(server.state.prompts)(texts, "passage")
        for path, body, before in (
            ("/v2/embed", {"texts": ["a"], "input_type": "search_query"}, "query: "),
            ("/v2/embed", {"texts": ["a"], "input_type": "search_document"}, "passage: "),
            ("/embed", {"inputs": "a", "prompt_name": "query"}, "query: "),
            ("/v1/embeddings", {"input": "a", "prompt_name": "other"}, ""),
            ("/v1/embeddings", {"input": "a"}, "passage: "),
            ("/api/embed", {"input": "a"}, "passage: "),
        ):
            answer = await server.client.post(path, json=body)
            assert answer.status_code == 200, answer.text
            assert prompts(server) == [ids_of(before + "a")], path
        refused = await server.post("/embed", inputs="a", prompt_name="none")
        assert refused.status_code == 400 and "names: query, passage, other" in refused.text


@run
async def test_tei_and_ollama_embed() -> None:
    async with served(pooling("embed", matryoshka=())) as server:
        found = (await server.post("/embed", inputs=["a", "b"], normalize=False)).json()
        assert [len(each) for each in found] == [4, 4]
        assert server.engine.batches[-1].params.normalize is False
        one = (await server.post("/embed", inputs="a", dimensions=2)).json()
        assert [len(each) for each in one] == [2]
        answer = (await server.post("/api/embed", model="demo", input=["a", "b"])).json()
        assert answer["model"] == "demo" and len(answer["embeddings"]) == 2
        assert answer["prompt_eval_count"] == len(ids_of("a")) + len(ids_of("b"))
        assert answer["total_duration"] > 0 and answer["load_duration"] == 0
        long = "house " * 400
        assert (await server.post("/api/embed", input=long)).status_code == 200
        refused = await server.post("/api/embed", input=long, truncate=False)
        assert refused.status_code == 400 and "takes at most 256" in refused.json()["error"]
        assert (await server.post("/api/embed", input=[])).json()["embeddings"] == []
        old = (await server.post("/api/embeddings", model="demo:latest", prompt="a")).json()
        assert len(old["embedding"]) == 4
        assert math.isclose(old["embedding"][3], 0.1, rel_tol=1e-6)
