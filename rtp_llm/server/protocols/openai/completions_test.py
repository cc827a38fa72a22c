# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest

from rtp_llm.testing.server.fake_engine import FakeStream
from rtp_llm.testing.server.serving import TEXT, demo_tokenizer, events, fake_engine, run, served

USAGE = {
    "prompt_tokens": 3,
    "completion_tokens": 2,
    "total_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 0},
}


def encode(text: str) -> list[int]:
    return demo_tokenizer().encode(text)


def text_of(stream: list[Any], index: int = 0) -> str:
    choices = [each for item in stream[:-1] for each in item["choices"]]
    return "".join(each["text"] for each in choices if each["index"] == index)


@pytest.mark.parametrize("usage", [None, False, True])
@run
async def test_stream_chunk_by_chunk(usage: bool | None) -> None:
    async with served() as server:
        options = {} if usage is None else {"stream_options": {"include_usage": usage}}
        response = await server.complete(stream=True, max_tokens=2, **options)
    stream = events(response.text)
    head = {"object": "text_completion", "model": "demo"}
    extra: dict[str, Any] = {"usage": None} if usage else {}
    expected = [
        {
            **head,
            "choices": [
                {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
                | ({} if finish is None else {"stop_reason": None})
            ],
            **extra,
        }
        for text, finish in (("On", None), ("ce", "length"))
    ]
    if usage:
        expected.append({**head, "choices": [], "usage": USAGE})
    assert stream.pop() == "[DONE]"
    assert len({(item.pop("id"), item.pop("created")) for item in stream}) == 1
    assert stream == expected


@run
async def test_whole_answer() -> None:
    async with served() as server:
        answer = (await server.complete(max_tokens=2)).json()
    assert answer.pop("id").startswith("cmpl-")
    answer.pop("created")
    assert answer == {
        "object": "text_completion",
        "model": "demo",
        "choices": [
            {
                "index": 0,
                "text": "Once",
                "logprobs": None,
                "finish_reason": "length",
                "stop_reason": None,
            }
        ],
        "usage": USAGE,
    }


@run
async def test_all_forms_of_prompt() -> None:
    ids = encode("Hello")
    response_options: list[tuple[Any, list[list[int]]]] = [
        ("Hello", [ids]),
        (["Hello"], [ids]),
        (["Hello", "a house"], [ids, encode("a house")]),
        (ids, [ids]),
        ([ids, [7]], [ids, [7]]),
    ]
    async with served() as server:
        for prompt, expected in response_options:
            server.engine.requests.clear()
            answer = (await server.complete(prompt=prompt, n=2, max_tokens=1)).json()
            assert [r.prompt_token_ids for r in server.engine.requests] == expected
            assert [each["index"] for each in answer["choices"]] == list(range(2 * len(expected)))
            assert answer["usage"]["prompt_tokens"] == sum(map(len, expected))
            assert answer["usage"]["completion_tokens"] == 2 * len(expected)
        server.engine.requests.clear()
        await server.complete(add_special_tokens=False)
        assert server.engine.requests[0].prompt_token_ids == ids[1:]


@run
async def test_several_prompts_keep_their_answers() -> None:
    engine = fake_engine()
    numbers = {tuple(encode(text)): index for index, text in enumerate(["one", "two", "three"])}
    says = [demo_tokenizer().encode(t, False) for t in ("first", "second answer", "third")]
    engine.script = lambda request, index: says[numbers[tuple(request.prompt_token_ids)]]
    async with served(engine) as server:
        prompts = ["one", "two", "three"]
        answer = (await server.complete(prompt=prompts)).json()
        texts = [each["text"] for each in answer["choices"]]
        assert texts == ["first", "second answer", "third"]
        stream = events((await server.complete(prompt=prompts, stream=True)).text)
        assert [text_of(stream, index) for index in range(3)] == texts
        finishes = [e["finish_reason"] for item in stream[:-1] for e in item["choices"]]
        assert finishes.count("stop") == 3


@run
async def test_echo() -> None:
    async with served() as server:
        answer = (await server.complete(echo=True, n=2)).json()
        assert [each["text"] for each in answer["choices"]] == ["Hello" + TEXT] * 2
        stream = events((await server.complete(echo=True, n=2, stream=True)).text)
        assert text_of(stream, 0) == text_of(stream, 1) == "Hello" + TEXT
        answer = (await server.complete(prompt=encode("a house"), echo=True)).json()
        assert answer["choices"][0]["text"] == "a house" + TEXT


@pytest.mark.parametrize("n", [1, 2])
@run
async def test_echo_with_logprobs(n: int) -> None:
    async with served() as server:
        body = {"echo": True, "logprobs": 1, "max_tokens": 2, "n": n}
        answer = (await server.complete(**body)).json()
        assert server.engine.requests[0].params.prompt_logprobs == 1
        stream = events((await server.complete(**body, stream=True)).text)
    for index, each in enumerate(answer["choices"]):
        logprobs = each["logprobs"]
        assert logprobs["tokens"] == ["<s>", "He", "llo", "On", "ce"]
        assert logprobs["token_logprobs"] == [None, -0.5, -0.5, -0.5, -0.5]
        assert logprobs["top_logprobs"][:2] == [None, {"He": -0.5}]
        assert logprobs["text_offset"] == [0, 0, 2, 5, 7]
        assert each["text"] == "HelloOnce"
        assert text_of(stream, index) == "HelloOnce"
        parts = [e["logprobs"] for item in stream[:-1] for e in item["choices"]]
        streamed = [e for part in parts if part for e in part["tokens"]]
        assert sorted(streamed) == sorted(logprobs["tokens"] * n)


@run
async def test_scoring_a_prompt_alone() -> None:
    """max_tokens 0 with echo: log-probabilities of the prompt and nothing else."""
    async with served() as server:
        answer = (await server.complete(echo=True, logprobs=0, max_tokens=0)).json()
    each = answer["choices"][0]
    assert each["text"] == "Hello" and each["finish_reason"] == "length"
    assert each["logprobs"]["tokens"] == ["<s>", "He", "llo"]
    assert each["logprobs"]["top_logprobs"] == [None, {"He": -0.5}, {"llo": -0.5}]
    assert answer["usage"]["completion_tokens"] == 0


@run
async def test_echo_of_a_single_token() -> None:
    async with served() as server:
        body = {"prompt": encode("Hello")[1:2], "echo": True, "logprobs": 1, "max_tokens": 3}
        each = (await server.complete(**body)).json()["choices"][0]
        assert each["text"] == "HeOnce upon" and each["finish_reason"] == "length"
        assert each["logprobs"]["token_logprobs"] == [None, -0.5, -0.5, -0.5]
        stream = events((await server.complete(**body, stream=True)).text)
        assert text_of(stream) == "HeOnce upon"
        only = (await server.complete(**{**body, "max_tokens": 0})).json()["choices"][0]
        assert only["text"] == "He" and only["logprobs"]["tokens"] == ["He"]


@run
async def test_missing_log_probabilities_are_an_error_not_an_empty_answer() -> None:
    async with served() as server:
        body = {"echo": True, "logprobs": 1, "max_tokens": 3}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FakeStream, "_prompt_logprobs", lambda self: None)
            assert (await server.complete(**body)).status_code == 500


@run
async def test_logprobs_of_partial_characters() -> None:
    async with served(fake_engine("😀!")) as server:
        logprobs = (await server.complete(logprobs=0)).json()["choices"][0]["logprobs"]
        assert logprobs["tokens"][-2:] == ["!", "<|im_end|>"]
        assert all(token.startswith("bytes:\\x") for token in logprobs["tokens"][:-2])
        assert logprobs["text_offset"] == [0] * (len(logprobs["tokens"]) - 2) + [1, 2]


@run
async def test_default_length_is_openai_s_sixteen() -> None:
    async with served(fake_engine(TEXT * 3)) as server:
        answer = (await server.complete()).json()
        assert answer["usage"]["completion_tokens"] == 16
        assert answer["choices"][0]["finish_reason"] == "length"


@run
async def test_answer_continues_the_prompt() -> None:
    """The prompt's last ids decide how the answer begins (a space in sentencepiece styles)."""
    async with served() as server:
        half = demo_tokenizer().encode("😀", add_special_tokens=False)
        says = half[1:]
        server.engine.script = lambda request, index: says
        answer = (await server.complete(prompt=half[:1])).json()
        assert answer["choices"][0]["text"] == "😀"


@run
async def test_prompt_log_probabilities_of_the_whole_vocabulary() -> None:
    for most, requested, words in (
        (20, -1, "-1 (the whole vocabulary, 512 tokens) must be between 0 and 20 (see --max-"),
        (511, -1, "--max-prompt-logprobs"),
        (30, 31, "31 must be between 0 and 30 (see --max-prompt-logprobs)"),
        (-1, 513, "513 must be between 0 and 512"),
        (-1, -2, "-2 must be between 0 and 512"),
    ):
        async with served(max_prompt_logprobs=most) as server:
            answer = await server.complete(prompt_logprobs=requested)
            assert answer.status_code == 400 and words in answer.json()["error"]["message"]
            stream = await server.chat(prompt_logprobs=1, stream=True)
            assert stream.status_code == 400
    for most in (-1, 512, 1000):
        async with served(max_prompt_logprobs=most) as server:
            for ask in (server.chat, server.complete):
                assert (await ask(prompt_logprobs=-1)).is_success
                assert server.engine.requests[-1].params.prompt_logprobs == 512
            schema = (await server.client.get("/openapi.json")).json()
            field = schema["components"]["schemas"]["ChatRequest"]["properties"]["prompt_logprobs"]
            assert {"type": "integer", "minimum": -1, "maximum": 512} in field["anyOf"]
