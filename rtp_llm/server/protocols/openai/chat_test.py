# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import copy
import dataclasses
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rtp_llm.testing.server.serving import TEXT, demo_tokenizer, events, fake_engine, run, served
from rtp_llm.text.generation_defaults import GenerationDefaults
from rtp_llm.text.model_files import ModelFilesError

SLOW = [HealthCheck.too_slow]  # drawing may have to wait for a core
USAGE = {
    "prompt_tokens": 16,
    "completion_tokens": 3,
    "total_tokens": 19,
    "prompt_tokens_details": {"cached_tokens": 0},
}


def chunk(choices: list[dict[str, Any]], **extra: Any) -> dict[str, Any]:
    head = {"id": "ID", "object": "chat.completion.chunk", "created": 0, "model": "demo"}
    return {**head, "choices": choices, **extra}


def choice(index: int, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    shown = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
    return shown if finish is None else shown | {"stop_reason": None}


def normal(stream: list[Any]) -> list[Any]:
    """The same id and time in all chunks; both are then replaced."""
    chunks = [item for item in stream if item != "[DONE]"]
    assert len({(item["id"], item["created"]) for item in chunks}) == 1
    assert chunks[0]["id"].startswith("chatcmpl-")
    return [i if i == "[DONE]" else {**i, "id": "ID", "created": 0} for i in stream]


ROLE = {"role": "assistant", "content": ""}
ONE = [
    choice(0, ROLE),
    choice(0, {"content": "On"}),
    choice(0, {"content": "ce"}),
    choice(0, {}, "stop"),
]
# Two choices of different lengths: "Once" ends by its end token, "a house" for its length.
TWO = [
    choice(0, ROLE),
    choice(0, {"content": "On"}),
    choice(1, ROLE),
    choice(1, {"content": "a"}),
    choice(0, {"content": "ce"}),
    choice(1, {"content": " house"}),
    choice(0, {}, "stop"),
    choice(1, {"content": "."}),
    choice(1, {}, "length"),
]
TWO_USAGE = {**USAGE, "completion_tokens": 6, "total_tokens": 22}
OPTIONS = {"absent": {}, "null": {"stream_options": None}, "empty": {"stream_options": {}}}
OPTIONS |= {
    "false": {"stream_options": {"include_usage": False}},
    "true": {"stream_options": {"include_usage": True}},
}


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("options", OPTIONS)
@run
async def test_stream_chunk_by_chunk(options: str, n: int) -> None:
    async with served(fake_engine("Once", "a house.")) as server:
        response = await server.chat(stream=True, n=n, max_tokens=3, **OPTIONS[options])
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    extra: dict[str, Any] = {"usage": None} if options == "true" else {}
    expected: list[Any] = [chunk([each], **extra) for each in (ONE if n == 1 else TWO)]
    if options == "true":
        expected.append(chunk([], usage=USAGE if n == 1 else TWO_USAGE))
    assert normal(events(response.text)) == [*expected, "[DONE]"]


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("options", ["absent", "null", "empty"])
@run
async def test_whole_answer_always_has_usage(options: str, n: int) -> None:
    async with served(fake_engine("Once", "a house.")) as server:
        answer = (await server.chat(n=n, max_tokens=3, **OPTIONS[options])).json()
    assert answer.pop("id").startswith("chatcmpl-")
    assert answer.pop("created") > 1_700_000_000
    texts = [("Once", "stop"), ("a house.", "length")][:n]
    assert answer == {
        "object": "chat.completion",
        "model": "demo",
        "choices": [
            {
                "index": index,
                "message": {"role": "assistant", "content": text, "refusal": None},
                "logprobs": None,
                "finish_reason": finish,
                "stop_reason": None,
            }
            for index, (text, finish) in enumerate(texts)
        ],
        "usage": USAGE if n == 1 else TWO_USAGE,
    }


@run
async def test_cached_tokens_in_usage() -> None:
    engine = fake_engine()
    engine.cached_tokens = 11
    async with served(engine) as server:
        answer = (await server.chat(n=2)).json()
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 11}


@run
async def test_draft_tokens_in_usage() -> None:
    engine = fake_engine("a house.")
    engine.draft_tokens = 4
    async with served(engine) as server:
        answer = (await server.chat(n=2)).json()
    tokens = answer["usage"]["completion_tokens"]
    assert answer["usage"]["completion_tokens_details"] == {
        "accepted_prediction_tokens": 2 * tokens,
        "rejected_prediction_tokens": 2 * tokens,
    }


@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
@given(st.data())
def test_stops_streamed_equal_stops_whole(data: st.DataObject) -> None:
    spans = st.tuples(st.integers(0, len(TEXT) - 1), st.integers(1, 6))
    stops = [TEXT[a : a + n] for a, n in data.draw(st.lists(spans, min_size=1, max_size=3))]

    async def compare() -> None:
        async with served() as server:
            whole = (await server.chat(stop=stops)).json()["choices"][0]
            stream = events((await server.chat(stop=stops, stream=True)).text)
            engine = server.engine
        parts = [item["choices"][0] for item in stream[:-1]]
        text = "".join(part["delta"].get("content", "") for part in parts)
        assert text == whole["message"]["content"]
        assert TEXT.startswith(text) and not any(stop in text for stop in stops)
        assert parts[-1]["finish_reason"] == whole["finish_reason"] == "stop"
        assert not engine.streams

    asyncio.run(compare())


@run
async def test_a_stop_string_ends_its_sequence_in_the_engine_only() -> None:
    engine = fake_engine("Once upon a time there was", "a small house there")
    async with served(engine) as server:
        answer = (await server.chat(n=2, stop=" upon")).json()
        assert [each["message"]["content"] for each in answer["choices"]] == [
            "Once",
            "a small house there",
        ]
        assert engine.aborted == [(1, 0)]
        await server.chat(stop=" upon")
        assert engine.aborted[1:] == [(2, None)]


@run
async def test_stop_below_min_tokens_and_included_stop() -> None:
    async with served(fake_engine("Once upon a time upon")) as server:
        body = {"stop": " upon", "min_tokens": 4}
        answer = (await server.chat(**body)).json()["choices"][0]
        assert answer["message"]["content"] == "Once upon a time"
        answer = (await server.chat(stop=" upon", include_stop_str_in_output=True)).json()
        assert answer["choices"][0]["message"]["content"] == "Once upon"


@run
async def test_end_tokens_show_no_text() -> None:
    engine = fake_engine("Once<|im_end|> upon<think> a")
    async with served(engine) as server:

        async def text(**body: Any) -> str:
            return str((await server.chat(**body)).json()["choices"][0]["message"]["content"])

        assert await text() == "Once"
        assert await text(ignore_eos=True, max_tokens=6) == "Once upon<think> a"
        assert await text(min_tokens=3) == "Once upon<think> a"
        think = demo_tokenizer().encode("<think>", add_special_tokens=False)
        assert await text(min_tokens=3, stop_token_ids=think) == "Once upon"


@run
async def test_logprobs() -> None:
    async with served(fake_engine("a 😀")) as server:
        body = {"logprobs": True, "top_logprobs": 2}
        whole = (await server.chat(**body)).json()["choices"][0]["logprobs"]
        entries = whole["content"]
        assert whole["refusal"] is None
        data = bytes(byte for entry in entries for byte in entry["bytes"])
        assert data == "a 😀<|im_end|>".encode()
        assert entries[0]["token"] == "a" and entries[0]["logprob"] == -0.5
        assert [top["logprob"] for top in entries[0]["top_logprobs"]] == [-0.5, -1.5]
        assert set(entries[0]["top_logprobs"][1]) == {"token", "logprob", "bytes"}
        stream = events((await server.chat(**body, stream=True)).text)
        parts = [item["choices"][0] for item in stream[:-1]]
        streamed = [e for part in parts if part["logprobs"] for e in part["logprobs"]["content"]]
        assert streamed == entries
        assert (await server.chat(logprobs=True)).json()["choices"][0]["logprobs"]["content"][0][
            "top_logprobs"
        ] == []
        assert (await server.chat(logprobs=False)).json()["choices"][0]["logprobs"] is None


@run
async def test_logprobs_of_a_stop_string_are_not_shown() -> None:
    async with served(fake_engine("Once upon a time there")) as server:
        for stream in (False, True):
            response = await server.chat(logprobs=True, stop=["on a t"], stream=stream)
            if stream:
                parts = [item["choices"][0]["logprobs"] for item in events(response.text)[:-1]]
            else:
                parts = [response.json()["choices"][0]["logprobs"]]
            tokens = [entry["token"] for part in parts if part for entry in part["content"]]
            assert tokens == ["On", "ce", " upon"]


@run
async def test_parameters_reach_the_engine() -> None:
    async with served() as server:
        await server.chat(
            temperature=0.5,
            top_p=0.9,
            top_k=5,
            min_p=0.1,
            typical_p=0.7,
            repetition_penalty=1.1,
            presence_penalty=0.2,
            frequency_penalty=0.3,
            no_repeat_ngram_size=3,
            logit_bias={"7": -100, "8": 5.5},
            seed=42,
            stop=["x", "y"],
            stop_token_ids=[9],
            ignore_eos=True,
            min_tokens=2,
            max_tokens=100,
            max_completion_tokens=6,
            n=2,
            priority=3,
            cache_salt="tenant",
            top_logprobs=3,
            logprobs=True,
        )
        (request,) = server.engine.requests
        params = request.params
        assert (params.temperature, params.top_p, params.top_k) == (0.5, 0.9, 5)
        assert (params.min_p, params.typical_p) == (0.1, 0.7)
        assert (params.repetition_penalty, params.presence_penalty) == (1.1, 0.2)
        assert (params.frequency_penalty, params.no_repeat_ngram_size) == (0.3, 3)
        assert (params.logit_bias, params.logprobs) == ({7: -100.0, 8: 5.5}, 3)
        assert (params.seed, params.stop, params.stop_token_ids) == (42, ("x", "y"), (9,))
        assert (params.ignore_eos, params.min_tokens, params.max_tokens) == (True, 2, 6)
        assert (params.n, params.priority, request.extra_key) == (2, 3, "tenant")
        await server.chat()
        params = server.engine.requests[1].params
        assert params.max_tokens == 256 - 16  # the rest of the context
        assert (params.temperature, params.top_p, params.logprobs) == (1.0, 1.0, None)


@run
async def test_model_defaults_of_sampling() -> None:
    config = {"do_sample": False, "top_k": 20, "max_new_tokens": 7, "repetition_penalty": 1.05}
    async with served() as server:
        tokenizer = copy.copy(demo_tokenizer())
        tokenizer.defaults = GenerationDefaults.read(config)
        server.state.open(tokenizer)
        await server.chat()
        await server.chat(temperature=0.3, max_tokens=9, top_k=0)
        await server.complete()
        first, second, third = (request.params for request in server.engine.requests)
        assert (first.temperature, first.top_k, first.max_tokens) == (0.0, 20, 7)
        assert (second.temperature, second.top_k, second.max_tokens) == (0.3, 0, 9)
        assert (third.max_tokens, third.repetition_penalty) == (7, 1.05)
        assert (await server.chat(messages=[{"role": "user", "content": "x" * 236}])).is_success
        assert server.engine.requests[-1].params.max_tokens < 7  # no room for the default
    async with served(use_generation_config=False) as server:
        server.state.open(tokenizer)
        await server.chat()
        assert server.engine.requests[0].params.temperature == 1.0


@run
async def test_the_shortest_answer_of_the_model_gives_way_to_a_shorter_request() -> None:
    tokenizer = copy.copy(demo_tokenizer())
    tokenizer.defaults = GenerationDefaults.read({"min_new_tokens": 5})
    async with served() as server:
        server.state.open(tokenizer)
        await server.chat(max_tokens=9)
        await server.chat(max_tokens=3)
        await server.chat(max_tokens=9, min_tokens=1)
        assert [each.params.min_tokens for each in server.engine.requests] == [5, 3, 1]


@run
async def test_impossible_model_defaults_are_found_at_the_start() -> None:
    tokenizer = copy.copy(demo_tokenizer())
    tokenizer._files = dataclasses.replace(
        tokenizer._files, generation_config={"temperature": 1000}
    )
    vars(tokenizer).pop("defaults", None)
    async with served() as server:
        with pytest.raises(ModelFilesError, match="temperature=1000"):
            server.state.open(tokenizer)
    async with served(use_generation_config=False) as server:
        server.state.open(tokenizer)


@run
async def test_end_tokens_that_only_the_tokenizer_knows() -> None:
    async with served() as server:
        server.engine.ready = replace(server.engine.ready, eos_token_ids=(300,))
        await server.chat(stop_token_ids=[9])
        await server.chat(ignore_eos=True, max_tokens=3)
        stops = [request.params.stop_token_ids for request in server.engine.requests]
        assert stops == [(9, *demo_tokenizer().eos_token_ids), ()]


@run
async def test_prompt_is_the_rendered_template() -> None:
    async with served() as server:
        content = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
        await server.chat(
            messages=[
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": content},
                {"role": "assistant", "content": "yes", "refusal": None, "tool_calls": None},
                {"role": "user", "content": "three"},
            ],
            tools=[],
            tool_choice="none",
            response_format={"type": "text"},
            user="someone",
            metadata={"a": "b"},
        )
        prompt = demo_tokenizer().decode(server.engine.requests[0].prompt_token_ids, False)
    assert prompt == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\none\ntwo<|im_end|>\n"
        "<|im_start|>assistant\nyes<|im_end|>\n<|im_start|>user\nthree<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
