# SPDX-License-Identifier: Apache-2.0
"""/v1/embeddings: what the engine is asked for, and what the client gets of it."""

from __future__ import annotations

import asyncio
import base64
import struct
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import pytest

from rtp_llm.request.params import PoolingParams
from rtp_llm.testing.server.fake_engine import FakeEngine, pool_numbers
from rtp_llm.testing.server.serving import Served, demo_tokenizer, fake_engine, run, served

EMBEDDINGS = "/v1/embeddings"


def embedder(**facts: Any) -> FakeEngine:
    engine = fake_engine()
    known = {"tasks": ("embed",), "vector_size": 4, **facts}
    engine.next_ready = msgspec.structs.replace(engine.next_ready, **known)
    return engine


def embedding(**facts: Any) -> AbstractAsyncContextManager[Served]:
    return served(embedder(**facts))


def ids_of(text: str) -> list[int]:
    return demo_tokenizer().encode(text)


def vector_of(ids: list[int]) -> list[float]:
    return [
        struct.unpack("f", struct.pack("f", each))[0] for each in pool_numbers(ids, PoolingParams())
    ]


@pytest.mark.parametrize(
    "given", ["a house", ["a house", "", "a garden"], [5, 6, 7], [[5, 6], [7], [8, 9, 10]]]
)
@run
async def test_inputs_of_all_forms(given: Any) -> None:
    async with embedding() as server:
        answer = (await server.post(EMBEDDINGS, input=given, model="demo")).json()
        several = [given] if isinstance(given, str) or isinstance(given[0], int) else given
        prompts = [ids_of(each) if isinstance(each, str) else each for each in several]
        (batch,) = server.engine.batches
        assert [*batch.prompts()] == prompts
        assert batch.params == PoolingParams()
        assert [each["embedding"] for each in answer["data"]] == [*map(vector_of, prompts)]
        assert [each["index"] for each in answer["data"]] == [*range(len(prompts))]
        tokens = sum(map(len, prompts))
        assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
        assert (answer["object"], answer["model"]) == ("list", "demo")


@run
async def test_base64_is_of_little_endian_float32() -> None:
    async with embedding() as server:
        answer = await server.post(EMBEDDINGS, input=["a", "b"], encoding_format="base64", user="u")
        for text, each in zip("ab", answer.json()["data"], strict=True):
            numbers = struct.unpack("<4f", base64.b64decode(each["embedding"]))
            assert [*numbers] == vector_of(ids_of(text))
        assert "x-rtp-llm-ignored-fields" not in answer.headers


@run
async def test_two_thousand_inputs_are_one_message_in_their_order() -> None:
    async with embedding() as server:
        texts = [f"house {number}" for number in range(2048)]
        answer = (await server.post(EMBEDDINGS, input=texts)).json()
        assert len(server.engine.batches) == 1
        expected = [vector_of(ids_of(text)) for text in texts]
        assert [each["embedding"] for each in answer["data"]] == expected
        refused = await server.post(EMBEDDINGS, input=[*texts, "one more"])
        assert refused.status_code == 400
        assert "2049 inputs are too many; at most 2048" in refused.text
        refused = await server.post(EMBEDDINGS, input="a", cache_salt="x" * 1025)
        assert "1025 characters are too many; at most 1024" in refused.text


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "input is required"),
        ({"input": []}, "must not be empty"),
        ({"input": [[]]}, "input 0 has no tokens"),
        ({"input": ["a", [5]]}, "must be a text, a list of texts"),
        ({"input": [5, 600]}, "token id 600 is outside the vocabulary of 512"),
        ({"input": 3}, "input: expected"),
        ({"input": ["a", "house " * 300]}, "input 1 has"),
        ({"input": [[5] * 257]}, "input 0 has 257 tokens, and this model takes at most 256"),
        ({"input": "a" * 100_000}, "context is 256 tokens"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format: invalid enum value"),
        ({"input": "a", "dimensions": 2}, "dimensions=2: embeddings of this model have 4 numbers"),
        ({"input": "a", "truncate_prompt_tokens": 257}, "must be -1 or between 1 and 256"),
        ({"input": "a", "priority": 101}, "priority=101 must be between"),
        ({"input": "a", "model": "other"}, "does not exist"),
    ],
)
@run
async def test_what_is_refused(body: dict[str, Any], reason: str) -> None:
    async with embedding() as server:
        answer = await server.client.post(EMBEDDINGS, json=body)
        assert answer.status_code in (400, 404)
        assert reason in answer.text
        assert not server.engine.batches


@run
async def test_truncation_keeps_the_special_tokens() -> None:
    text = "house " * 300
    bos, *rest = ids_of(text)
    async with embedding() as server:
        for keep, side, expected in (
            (3, "right", [bos, *rest[:2]]),
            (3, "left", [bos, *rest[-2:]]),
            (-1, "right", [bos, *rest[:255]]),
        ):
            more = {"truncate_prompt_tokens": keep, "truncation_side": side}
            answer = await server.post(EMBEDDINGS, input=text, **more)
            assert answer.status_code == 200, answer.text
            assert [*server.engine.batches[-1].prompts()] == [expected]
        more = {"truncate_prompt_tokens": 2, "add_special_tokens": False}
        await server.post(EMBEDDINGS, input=[text, "a"], **more)
        first, _ = server.engine.batches[-1].prompts()
        assert first == rest[:2]


@pytest.mark.parametrize(("sizes", "taken"), [((), 3), ((2,), 2), ((2, 3), 3)])
@run
async def test_declared_dimensions(sizes: tuple[int, ...], taken: int) -> None:
    async with embedding(matryoshka=sizes) as server:
        assert (await server.post(EMBEDDINGS, input="a", dimensions=taken)).status_code == 200
        assert server.engine.batches[0].params.dimensions == taken
        refused = await server.post(EMBEDDINGS, input="a", dimensions=5)
        assert refused.status_code == 400 and "dimensions=5: embeddings" in refused.text


@run
async def test_a_client_that_goes_away_aborts_all_inputs() -> None:
    engine = embedder()
    engine.allowed_steps = lambda: 0
    async with served(engine) as server:
        task = asyncio.create_task(server.post(EMBEDDINGS, input=["a", "b"]))
        while not engine.streams:
            await asyncio.sleep(0.01)
        task.cancel()
        while engine.streams:
            await asyncio.sleep(0.01)
        assert engine.aborted == [(engine.batches[0].request_id, None)]


@run
async def test_metrics_of_inputs() -> None:
    async with embedding() as server:
        await server.post(EMBEDDINGS, input=["a", "b"])
        lines = (await server.client.get("/metrics")).text.splitlines()
        tokens = sum(len(ids_of(each)) for each in "ab")
        name = 'model_name="demo"'
        assert f"rtp_llm_prompt_tokens_total{{{name}}} {float(tokens)}" in lines
        assert f"rtp_llm_request_inputs_sum{{{name}}} 2.0" in lines
        assert f'rtp_llm_finished_sequences_total{{finish_reason="stop",{name}}} 1.0' in lines
