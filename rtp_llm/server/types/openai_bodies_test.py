# SPDX-License-Identifier: Apache-2.0
"""Fields beyond OpenAI's, as vLLM's clients send them; and what nobody knows."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import openai
import pytest

from rtp_llm.testing.server.serving import (
    CHAT,
    TEXT,
    Served,
    demo_folder,
    demo_tokenizer,
    events,
    fake_engine,
    listening,
    run,
    served,
)
from rtp_llm.text.model_files import ModelFiles
from rtp_llm.text.tokenizer import Tokenizer

HEADER = "x-rtp-llm-ignored-fields"
HELLO = {"role": "user", "content": "Hello"}


def encode(text: str) -> list[int]:
    return demo_tokenizer().encode(text, False)


def with_template(server: Served, template: str) -> None:
    """Serve the same model with another chat template."""
    files = ModelFiles.read(demo_folder())
    server.state.open(Tokenizer(files, demo_tokenizer()._backend, template))


def prompt_text(server: Served) -> str:
    return demo_tokenizer().decode(server.engine.requests[-1].prompt_token_ids, False)


# -- unknown fields ----------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@run
async def test_an_unknown_field_passes_and_is_named(
    stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "rtp_llm.server")
    empty = {"a": None, "b": False, "c": "", "d": [], "e": {}}
    async with served() as server:
        for ask in (server.chat, server.complete):
            response = await ask(nonsense=1, stream=stream, user="me", **empty)
            assert response.status_code == 200
            assert response.headers[HEADER] == "nonsense"
            options = {"include_usage": True, "later": 1, "empty": None}
            response = await ask(stream_options=options, stream=True)
            assert response.headers[HEADER] == "stream_options.later"
            assert HEADER not in (await ask(stream=stream, **empty)).headers
    assert caplog.text.count("nonsense") == 1


@run
async def test_names_of_unknown_fields_are_bounded_and_plain() -> None:
    async with served() as server:
        response = await server.chat(**{"x\r\nSet-Cookie: a=b": 1})
        assert response.headers[HEADER] == "x??Set-Cookie??a?b"
        assert "set-cookie" not in response.headers
        response = await server.chat(**{"é\x00" * 500: 1})
        assert response.headers[HEADER] == "?" * 64
        response = await server.chat(**{f"field_{i}": 1 for i in range(100)})
        shown = response.headers[HEADER].split(", ")
        assert shown == [*(f"field_{i}" for i in range(16)), "..."]


@run
async def test_strict_fields_refuse_what_nobody_knows() -> None:
    async with served(strict_fields=True) as server:
        for ask in (server.chat, server.complete):
            response = await ask(nonsense=1)
            assert (response.status_code, response.json()["error"]["param"]) == (400, "nonsense")
            assert response.json()["error"]["code"] == "unknown_field"
            response = await ask(stream_options={"x": 1})
            assert response.json()["error"]["param"] == "stream_options.x"
            assert (await ask(nothing=None, user="me")).status_code == 200
        message = {**HELLO, "provider_specific_fields": {"x": 1}}
        assert (await server.chat(messages=[message])).status_code == 200


def test_what_real_clients_send() -> None:
    """LiteLLM sends back whole answers; GuideLLM its own fields; both through `openai`."""
    with listening(fake_engine()) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)
        first = client.chat.completions.create(model="demo", messages=[HELLO])  # type: ignore[list-item]
        dump = {
            **first.choices[0].message.model_dump(),
            "tool_calls": None,
            "function_call": None,
            "provider_specific_fields": {"refusal": None, "x": 1},
            "annotations": [],
            "thinking_blocks": [{"type": "thinking"}],
        }
        messages: list[Any] = [HELLO, dump, HELLO]
        again = client.chat.completions.create(model="demo", messages=messages)
        assert again.choices[0].message.content == TEXT
        stream = client.chat.completions.create(
            model="demo",
            messages=messages,
            stream=True,
            stream_options={"include_usage": True, "continuous_usage_stats": True},  # type: ignore[typeddict-unknown-key]
            user="guidellm",
            extra_body={"ignore_eos": True, "request_type": "chat", "extra": {"a": 1}},
            max_tokens=5,
        )
        chunks = list(stream)
        counts = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage]
        assert len(counts) == len(chunks) and counts == sorted(counts) and counts[-1] == 5
        raw = client.completions.with_raw_response.create(
            model="demo", prompt="Hello", extra_body={"nonsense": 1, "return_token_ids": True}
        )
        assert raw.headers[HEADER] == "nonsense"
        choice: Any = raw.parse().choices[0]
        assert choice.token_ids[: len(encode("Once"))] == encode("Once")


@run
async def test_usage_in_every_chunk_only_when_asked_for() -> None:
    async with served() as server:
        for ask in (server.chat, server.complete):
            for options in ({"continuous_usage_stats": True}, {"include_usage": True}):
                stream = events((await ask(stream=True, max_tokens=3, stream_options=options)).text)
                assert not any(item.get("usage") for item in stream[:-2])
            options = {"include_usage": True, "continuous_usage_stats": True}
            stream = events((await ask(stream=True, max_tokens=3, stream_options=options)).text)
            *parts, last, _ = stream
            assert all(part["choices"] for part in parts) and not last["choices"]
            used = [part["usage"]["completion_tokens"] for part in parts]
            assert used == sorted(used) and used[-1] == 3 == last["usage"]["completion_tokens"]


# -- tokens ------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2])
@run
async def test_token_ids_whole_and_streamed(n: int) -> None:
    async with served(fake_engine("Once upon", "a 😀")) as server:
        expected = [[*encode(text), 4] for text in ("Once upon", "a 😀")][:n]
        body = {"return_token_ids": True, "n": n}
        chat = (await server.chat(**body)).json()
        prompt = server.engine.requests[0].prompt_token_ids
        assert chat["prompt_token_ids"] == prompt
        assert [choice["token_ids"] for choice in chat["choices"]] == expected
        stream = events((await server.chat(**body, stream=True)).text)[:-1]
        assert [part.get("prompt_token_ids") for part in stream] == [
            prompt,
            *[None] * (len(stream) - 1),
        ]
        assert _streamed_ids(stream, n) == expected
        text = (await server.complete(**body, prompt=["Hello", "a"])).json()
        prompts = [demo_tokenizer().encode(each) for each in ("Hello", "a") for _ in range(n)]
        assert [choice["prompt_token_ids"] for choice in text["choices"]] == prompts
        assert [choice["token_ids"] for choice in text["choices"]] == expected * 2
        stream = events((await server.complete(**body, stream=True)).text)[:-1]
        assert _streamed_ids(stream, n) == expected
        given = [
            c["prompt_token_ids"] for p in stream for c in p["choices"] if "prompt_token_ids" in c
        ]
        assert given == [demo_tokenizer().encode("Hello")] * n
        plain = (await server.chat()).text + (await server.complete(stream=True)).text
        assert "token_ids" not in plain


def _streamed_ids(stream: list[Any], n: int) -> list[list[int]]:
    ids: list[list[int]] = [[] for _ in range(n)]
    for part in stream:
        for choice in part["choices"]:
            ids[choice["index"]] += choice.get("token_ids", [])
    return ids


@run
async def test_token_ids_end_with_the_stop_string() -> None:
    async with served(fake_engine("Once upon a time there")) as server:
        answer = (await server.chat(return_token_ids=True, stop="on a t")).json()
        choice = answer["choices"][0]
        assert choice["message"]["content"] == "Once up"
        assert choice["token_ids"] == encode("Once upon a time")


@run
async def test_tokens_are_named_by_their_ids() -> None:
    async with served(fake_engine("a 😀")) as server:
        ids = [*encode("a 😀"), 4]
        names = [f"token_id:{each}" for each in ids]
        body = {"return_tokens_as_token_ids": True}
        answer = (await server.chat(**body, logprobs=True, top_logprobs=1)).json()
        entries = answer["choices"][0]["logprobs"]["content"]
        assert [entry["token"] for entry in entries] == names
        assert [entry["top_logprobs"][0]["token"] for entry in entries] == names
        answer = (await server.complete(**body, logprobs=1)).json()["choices"][0]["logprobs"]
        assert answer["tokens"] == names
        assert [list(top) for top in answer["top_logprobs"]] == [[name] for name in names]


@run
async def test_log_probabilities_of_named_ids() -> None:
    async with served(fake_engine("a")) as server:
        answer = (await server.chat(logprob_token_ids=[9, 8])).json()
        assert server.engine.requests[-1].params.logprob_token_ids == (9, 8)
        top = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        assert [entry["logprob"] for entry in top] == [-0.5, -2.0, -2.0]
        assert top[0]["token"] == "a"
        body = {"logprob_token_ids": [9, 8], "return_tokens_as_token_ids": True}
        answer = (await server.complete(**body)).json()
        assert answer["choices"][0]["logprobs"]["top_logprobs"][0] == {
            "token_id:9": -2.0,
            "token_id:8": -2.0,
            f"token_id:{encode('a')[0]}": -0.5,
        }


@run
async def test_prompt_log_probabilities_in_the_form_of_vllm() -> None:
    async with served() as server:
        answer = (await server.chat(prompt_logprobs=1, n=2)).json()
        ids = server.engine.requests[0].prompt_token_ids
        entries = answer["prompt_logprobs"]
        assert len(entries) == len(ids) and entries[0] is None
        text = demo_tokenizer().token_text(ids[1])
        assert entries[1] == {str(ids[1]): {"logprob": -0.5, "rank": 1, "decoded_token": text}}
        assert "prompt_logprobs" not in answer["choices"][0]
        both = {"prompt": ["Hello", "a house"], "prompt_logprobs": 2}
        choices = (await server.complete(**both)).json()["choices"]
        for choice, prompt in zip(choices, both["prompt"], strict=True):
            ids = demo_tokenizer().encode(prompt)
            assert [list(each) for each in choice["prompt_logprobs"][1:]] == [
                [str(token), str(token + 1)] for token in ids[1:]
            ]
        # Along with an echo, each shows as many as were requested.
        body = {"prompt_logprobs": 0, "echo": True, "logprobs": 2}
        choice = (await server.complete(**body)).json()["choices"][0]
        assert server.engine.requests[-1].params.prompt_logprobs == 2
        assert [each["rank"] for each in choice["prompt_logprobs"][1].values()] == [1]
        assert len(choice["logprobs"]["top_logprobs"][1]) == 2
        body = {"prompt_logprobs": 2, "echo": True, "logprobs": 0}
        choice = (await server.complete(**body)).json()["choices"][0]
        assert len(choice["prompt_logprobs"][1]) == 2
        assert len(choice["logprobs"]["top_logprobs"][1]) == 1


@run
async def test_token_rules_reach_the_engine() -> None:
    async with served() as server:
        for ask in (server.chat, server.complete):
            await ask(allowed_token_ids=[5, 6], bad_words=["upon", " time"])
            params = server.engine.requests[-1].params
            assert params.allowed_token_ids == (5, 6)
            words = [demo_tokenizer().decode(ids) for ids in params.bad_words_token_ids]
            assert words == ["upon", " upon", "time", " time"]
            await ask(bad_words="upon")
            assert len(server.engine.requests[-1].params.bad_words_token_ids) == 2


@run
async def test_a_truncated_prompt_keeps_its_end() -> None:
    long = "a house " * 4000
    async with served() as server:
        ids = demo_tokenizer().encode(long)
        await server.complete(prompt=long, truncate_prompt_tokens=5)
        assert server.engine.requests[-1].prompt_token_ids == ids[-5:]
        await server.complete(prompt=[list(range(5, 25))], truncate_prompt_tokens=3, echo=True)
        assert server.engine.requests[-1].prompt_token_ids == [22, 23, 24]
        for wanted in (7, None):
            await server.complete(prompt=long, truncate_prompt_tokens=-1, max_tokens=wanted)
            kept = 256 - (wanted or 1)
            assert server.engine.requests[-1].prompt_token_ids == ids[-kept:]
        answer = await server.complete(
            prompt="Hello there", truncate_prompt_tokens=2, echo=True, max_tokens=1
        )
        shown = demo_tokenizer().decode(demo_tokenizer().encode("Hello there")[-2:])
        assert answer.json()["choices"][0]["text"] == shown + "On"
        message = {"role": "user", "content": long}
        await server.chat(messages=[message], truncate_prompt_tokens=20, max_tokens=3)
        assert prompt_text(server).endswith("<|im_start|>assistant\n")
        assert len(server.engine.requests[-1].prompt_token_ids) == 20


# -- chats -------------------------------------------------------------------------------------


@run
async def test_continuing_and_echoing_the_last_message() -> None:
    messages = [HELLO, {"role": "assistant", "content": "Once"}]
    async with served(fake_engine(" upon")) as server:
        body = {"messages": messages, "continue_final_message": True}
        for extra in ({}, {"add_generation_prompt": False}):
            answer = (await server.chat(**body, **extra)).json()
            assert prompt_text(server).endswith("<|im_start|>assistant\nOnce")
            assert answer["choices"][0]["message"]["content"] == " upon"
        answer = (await server.chat(**body, echo=True, n=2)).json()
        assert [c["message"]["content"] for c in answer["choices"]] == ["Once upon"] * 2
        stream = events((await server.chat(**body, echo=True, stream=True)).text)[:-1]
        texts = [part["choices"][0]["delta"].get("content") for part in stream]
        assert "".join(text or "" for text in texts) == "Once upon"
        answer = (await server.chat(echo=True)).json()  # the last message is another's
        assert answer["choices"][0]["message"]["content"] == " upon"
        body = {"messages": [HELLO], "add_generation_prompt": False}
        await server.chat(**body)
        assert prompt_text(server).endswith("<|im_end|>\n")
        tokens = await server.post("/tokenize", messages=messages, continue_final_message=True)
        assert demo_tokenizer().decode(tokens.json()["tokens"], False).endswith("Once")


@run
async def test_a_null_content_reaches_the_template_as_empty_text() -> None:
    async with served() as server:
        with_template(server, "{% for m in messages %}[{{ m.content == '' }}]{% endfor %}")
        empty = [{"role": role, "content": None} for role in ("system", "user", "assistant")]
        await server.chat(messages=[*empty, {"role": "assistant"}, HELLO])
        assert prompt_text(server) == "[True][True][True][True][False]"


@run
async def test_a_template_of_the_request_needs_the_operators_trust() -> None:
    template = "{% for m in messages %}<{{ m.content }}>{% endfor %}{{ eos_token }}"
    async with served(trust_request_chat_template=True) as server:
        answer = await server.chat(chat_template=template)
        assert answer.status_code == 200 and prompt_text(server) == "<Hello><|im_end|>"
        response = await server.post("/tokenize", messages=[HELLO], chat_template="x")
        assert response.json()["count"] == 1
        for broken, words in (
            ("{% for %}", "does not compile"),
            ("{{ 1 // 0 }}", "ZeroDivisionError"),
            ("{{ ''.__class__.__mro__ }}", "unsafe"),
            ("{{ '%c' % 0xd800 }}", "UnicodeEncodeError"),
            ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
            ("{{ raise_exception('not so') }}", "not so"),
        ):
            response = await server.chat(chat_template=broken)
            error = response.json()["error"]
            assert (response.status_code, error["param"]) == (400, "chat_template")
            again = await server.chat(chat_template=broken, reasoning_effort="low")
            assert again.status_code == 400
            assert error["code"] == "chat_template" and words in error["message"]


@run
async def test_reasoning_effort_reaches_templates_that_name_it() -> None:
    async with served() as server:
        assert (await server.chat(reasoning_effort="low")).status_code == 400
        with_template(server, "{{ reasoning_effort | default('none') }}")
        await server.chat(reasoning_effort="low")
        assert prompt_text(server) == "low"
        await server.chat(reasoning_effort="low", chat_template_kwargs={"reasoning_effort": "high"})
        assert prompt_text(server) == "high"
        await server.chat(reasoning_effort=None)
        assert prompt_text(server) == "none"


@run
async def test_best_of_equal_to_n() -> None:
    async with served() as server:
        assert (await server.chat(best_of=2, n=2)).status_code == 200
        assert (await server.chat(best_of=1)).status_code == 200


def test_a_request_with_none_of_these_is_written_as_before() -> None:
    async def bodies() -> list[Any]:
        async with served(fake_engine("Once")) as server:
            return [(await server.chat(**CHAT)).json(), (await server.complete()).json()]

    chat, text = asyncio.run(bodies())
    assert set(chat) == {"id", "object", "created", "model", "choices", "usage"}
    common = {"index", "logprobs", "finish_reason", "stop_reason"}
    assert set(chat["choices"][0]) == common | {"message"}
    assert set(text) == set(chat)
    assert set(text["choices"][0]) == common | {"text"}


@pytest.mark.parametrize(
    ("path", "body"), [("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})]
)
@pytest.mark.parametrize("padding", [0, 2**14])
@run
async def test_answers_without_the_engine_name_them_too(path, body, padding) -> None:
    """Also where the body was long enough for the preparation process."""
    async with served() as server:
        sent = {**body, "xyzzy": "x" * (padding + 1)}
        answer = await server.client.post(path, json=sent)
        assert answer.status_code == 200
        assert answer.headers[HEADER] == "xyzzy"
