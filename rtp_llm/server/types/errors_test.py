# SPDX-License-Identifier: Apache-2.0
"""Every way to ask wrongly, and what is answered."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rtp_llm.config.refusals import REFUSALS, find_refusal, get_refusal
from rtp_llm.engine.messages import EngineStats, RequestError
from rtp_llm.testing.server.serving import (
    CHAT,
    JSON,
    PROMPT,
    demo_tokenizer,
    events,
    fake_engine,
    run,
    served,
)
from rtp_llm.text.chat_template import RESERVED

CHAT_PATH, TEXT_PATH = "/v1/chat/completions", "/v1/completions"
HELLO = {"role": "user", "content": "Hello"}


def check(
    response: Any, status: int, param: str | None, text: str, code: str | None = None
) -> None:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert set(response.json()) == {"error"}
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
    assert text in error["message"]
    if code:
        assert error["code"] == code


# endpoint, changed fields, status, param, part of the message
CASES: list[tuple[str, dict[str, Any], int, str | None, str]] = [
    (CHAT_PATH, {"messages": "hi"}, 400, "messages", "expected array, got str"),
    (CHAT_PATH, {"messages": []}, 400, "messages", "must not be empty"),
    (CHAT_PATH, {"messages": [{"role": "user"}]}, 400, "messages[0].content", "is required"),
    (CHAT_PATH, {"messages": [{"content": "x"}]}, 400, "messages[0].role", "is required"),
    (CHAT_PATH, {"messages": [{"role": "k ng"}]}, 400, "messages[0].role", "must be a word"),
    (CHAT_PATH, {"messages": [HELLO, {"role": "tool"}]}, 400, "messages[1].content", "is required"),
    (
        CHAT_PATH,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        400,
        "messages[0].content[0]",
        "Only text parts",
    ),
    (
        CHAT_PATH,
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
        400,
        "messages[0].content[0].text",
        "expected str",
    ),
    (CHAT_PATH, {"model": "other"}, 404, "model", "'other' does not exist"),
    (CHAT_PATH, {"model": 3}, 400, "model", "expected str or null, got int"),
    (CHAT_PATH, {"temperature": "hot"}, 400, "temperature", "expected float or null, got str"),
    (CHAT_PATH, {"temperature": -1}, 400, "temperature", "between 0.0 and 100.0"),
    (CHAT_PATH, {"top_p": 0}, 400, "top_p", "greater than 0"),
    (CHAT_PATH, {"top_p": 1.5}, 400, "top_p", "between 0.0 and 1.0"),
    (CHAT_PATH, {"n": 0}, 400, "n", "between 1 and 128"),
    (CHAT_PATH, {"n": 100}, 400, "n", "100 sequences; this server holds at most 32"),
    (CHAT_PATH, {"n": 1.5}, 400, "n", "expected int or null, got float"),
    (CHAT_PATH, {"max_tokens": 0}, 400, "max_tokens", "between 1 and"),
    (CHAT_PATH, {"max_tokens": True}, 400, "max_tokens", "expected int or null, got bool"),
    (CHAT_PATH, {"max_tokens": 10**30}, 400, "max_tokens", ""),
    (CHAT_PATH, {"max_tokens": 250}, 400, "max_tokens", "256 tokens; 16 in the prompt and 250"),
    (CHAT_PATH, {"max_completion_tokens": 250}, 400, "max_completion_tokens", "make 266"),
    (CHAT_PATH, {"min_tokens": 5, "max_tokens": 2}, 400, "min_tokens", "must not exceed"),
    (CHAT_PATH, {"seed": 2**64}, 400, "seed", ""),
    (CHAT_PATH, {"stop": [""]}, 400, "stop", "not empty"),
    (CHAT_PATH, {"stop": [1]}, 400, "stop[0]", "expected str, got int"),
    (CHAT_PATH, {"stop": ["x"] * 65}, 400, "stop", "at most 64 strings"),
    (CHAT_PATH, {"stop_token_ids": [512]}, 400, "stop_token_ids", "outside the vocabulary of 512"),
    (CHAT_PATH, {"logit_bias": {"x": 1}}, 400, "logit_bias", "'x' is not a token id"),
    (CHAT_PATH, {"logit_bias": {"512": 1}}, 400, "logit_bias", "outside the vocabulary"),
    (CHAT_PATH, {"logit_bias": {"1": 200}}, 400, "logit_bias", "between -100.0 and 100.0"),
    (CHAT_PATH, {"top_logprobs": 2}, 400, "top_logprobs", "needs logprobs"),
    (CHAT_PATH, {"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs", "between 0 and 20"),
    (CHAT_PATH, {"presence_penalty": 3}, 400, "presence_penalty", "between -2.0 and 2.0"),
    (CHAT_PATH, {"stream_options": 1}, 400, "stream_options", "expected object or null"),
    (CHAT_PATH, {"stream": "yes"}, 400, "stream", "expected bool or null, got str"),
    (CHAT_PATH, {"allowed_token_ids": []}, 400, "allowed_token_ids", "allows no token"),
    (CHAT_PATH, {"allowed_token_ids": [512]}, 400, "allowed_token_ids", "outside the vocabulary"),
    (CHAT_PATH, {"allowed_token_ids": [True]}, 400, "allowed_token_ids[0]", "got bool"),
    (CHAT_PATH, {"stop_token_ids": [True]}, 400, "stop_token_ids[0]", "got bool"),
    (CHAT_PATH, {"logprob_token_ids": [False]}, 400, "logprob_token_ids[0]", "got bool"),
    (CHAT_PATH, {"logprob_token_ids": [-1]}, 400, "logprob_token_ids", "between 0"),
    (CHAT_PATH, {"logprob_token_ids": [1] * 129}, 400, "logprob_token_ids", "at most 128"),
    (CHAT_PATH, {"logit_bias": {"True": 1}}, 400, "logit_bias", "'True' is not a token id"),
    (CHAT_PATH, {"logit_bias": {"1": True}}, 400, "logit_bias[...]", "got bool"),
    (CHAT_PATH, {"cache_salt": "x" * 1025}, 400, "cache_salt", "1025 characters are too many"),
    (CHAT_PATH, {"bad_words": [""]}, 400, "bad_words", "'' has no tokens"),
    (CHAT_PATH, {"bad_words": ["x"] * 257}, 400, "bad_words", "at most 256 texts"),
    (CHAT_PATH, {"bad_words": ["abc " * 100]}, 400, "bad_words", "between 1 and 32"),
    (CHAT_PATH, {"prompt_logprobs": 21}, 400, "prompt_logprobs", "between 0 and 20"),
    (CHAT_PATH, {"prompt_logprobs": 1, "stream": True}, 400, "prompt_logprobs", "stream=true"),
    (CHAT_PATH, {"truncate_prompt_tokens": 0}, 400, "truncate_prompt_tokens", "must be -1 or"),
    (CHAT_PATH, {"truncate_prompt_tokens": 257}, 400, "truncate_prompt_tokens", "context of 256"),
    (CHAT_PATH, {"best_of": 2}, 400, "best_of", "ranked by a beam search only"),
    (
        CHAT_PATH,
        {"continue_final_message": True, "add_generation_prompt": True},
        400,
        "continue_final_message",
        "cannot both be true",
    ),
    (CHAT_PATH, {"chat_template": "x"}, 400, "chat_template", "--trust-request-chat-template"),
    (
        CHAT_PATH,
        {"chat_template_kwargs": {"messages": []}},
        400,
        "chat_template_kwargs",
        "cannot be set",
    ),
    (TEXT_PATH, {"prompt": None}, 400, "prompt", "got null"),
    (TEXT_PATH, {"prompt": []}, 400, "prompt", "must be a text"),
    (TEXT_PATH, {"prompt": ["a", 1]}, 400, "prompt", "must be a text"),
    (TEXT_PATH, {"prompt": [[1], 2]}, 400, "prompt", "must be a text"),
    (TEXT_PATH, {"prompt": [[]]}, 400, "prompt", "must not be empty"),
    (TEXT_PATH, {"prompt": "", "add_special_tokens": False}, 400, "prompt", "must not be empty"),
    (TEXT_PATH, {"prompt": [1, -1]}, 400, "prompt", "token id -1 is outside"),
    (TEXT_PATH, {"prompt": [True]}, 400, "prompt[0]", "got bool"),
    (TEXT_PATH, {"prompt": [[1, False]]}, 400, "prompt[0][1]", "got bool"),
    (TEXT_PATH, {"prompt": [1.5]}, 400, "prompt[0]", "got float"),
    (TEXT_PATH, {"prompt": [7] * 256}, 400, "prompt", "256 in the prompt and 1 for the answer"),
    (TEXT_PATH, {"prompt": ["x"] * 33}, 400, "prompt", "33 sequences; this server holds"),
    (TEXT_PATH, {"logprobs": 21}, 400, "logprobs", "between 0 and 20"),
    (TEXT_PATH, {"logprobs": True}, 400, "logprobs", "expected int or null, got bool"),
    (TEXT_PATH, {"max_tokens": 0}, 400, "max_tokens", "between 1 and"),
    (TEXT_PATH, {"best_of": 2}, 400, "best_of", "ranked by a beam search only"),
    (TEXT_PATH, {"suffix": "x"}, 400, "suffix", "no tokens to fill in the middle"),
    ("/tokenize", {}, 400, "prompt", "Give one of prompt and messages"),
    ("/tokenize", {"prompt": "a", "messages": [HELLO]}, 400, "prompt", "Give one of"),
    ("/tokenize", {"prompt": "a", "model": "x"}, 404, "model", "does not exist"),
    ("/detokenize", {}, 400, "tokens", "is required"),
    ("/detokenize", {"tokens": [True]}, 400, "tokens[0]", "got bool"),
    ("/detokenize", {"tokens": [99999]}, 400, "tokens", "outside the vocabulary"),
    ("/detokenize", {"tokens": [-1]}, 400, "tokens", "outside the vocabulary"),
]


@pytest.mark.parametrize("case", range(len(CASES)))
@run
async def test_bad_requests(case: int) -> None:
    path, fields, status, param, text = CASES[case]
    base = {CHAT_PATH: CHAT, TEXT_PATH: PROMPT}.get(path, {})
    async with served() as server:
        for stream in (False, True) if base else (False,):
            extra = {"stream": True} if stream and "stream" not in fields else {}
            check(await server.post(path, **{**base, **fields, **extra}), status, param, text)
        assert not server.engine.requests


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b'"x"', b"\xff", b'{"model": "\\ud800"}', b"[" * 100_000, b"null"]
)
@run
async def test_bad_json(body: bytes) -> None:
    async with served() as server:
        for path in (CHAT_PATH, TEXT_PATH, "/tokenize", "/detokenize"):
            response = await server.client.post(path, content=body, headers=JSON)
            check(response, 400, None, "JSON" if body[:9] != b"[" * 9 else "", "invalid_json")


VALUES: dict[str, Any] = {
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "enable_thinking": True,
    "thinking_budget": 0,
    "modalities": ["audio"],
    "reasoning_effort": "low",
    "chat_template": "{{ messages }}",
    "suffix": "x",
}


@pytest.mark.parametrize("name", [r.name for r in REFUSALS if r.area == "request"])
@run
async def test_the_table_of_refusals(name: str) -> None:
    """Each row is answered with its reason; an empty value of a field asks for nothing."""
    if name.startswith("messages."):
        assert any(name in str(r) for r in REFUSALS)
        return
    reason = get_refusal("request", name).reason
    of_completions = find_refusal("completion", name)
    async with served() as server:
        value = VALUES.get(name, [{"x": 1}])
        for ask in (server.chat, server.complete):
            if name == "best_of":
                value = 3
            if ask == server.complete and of_completions is not None:
                reason = of_completions.reason
            check(await ask(**{name: value}), 400, name, reason, "unsupported")
            assert (await ask(**{name: None})).status_code == 200


@run
async def test_megabytes_of_prompt_are_refused_by_their_beginning() -> None:
    async with served() as server:
        tokenised = []
        encode = demo_tokenizer().encode

        def spy(text: str, add_special_tokens: bool = True) -> list[int]:
            tokenised.append(len(text))
            return encode(text, add_special_tokens)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(demo_tokenizer(), "encode", spy)
            long = "a house " * 500_000
            response = await server.complete(prompt=long)
            check(response, 400, "prompt", "context is 256 tokens", "context_length_exceeded")
            message = {"role": "user", "content": long}
            check(await server.chat(messages=[message]), 400, "messages", "alone make")
            assert sum(tokenised) < 20_000
            response = await server.complete(prompt="a house " * 400)  # long, not hopeless
            check(response, 400, "prompt", "in the prompt and 1 for the answer")


@pytest.mark.parametrize("name", ["thinking_budget"])
@run
async def test_zero_is_not_nothing(name: str) -> None:
    async with served() as server:
        check(await server.chat(**{name: 0}), 400, name, "not supported", "unsupported")
        for fields in ({"use_beam_search": False}, {"length_penalty": 1}, {"length_penalty": 1.0}):
            assert (await server.chat(**fields)).status_code == 200


@pytest.mark.parametrize("name", sorted(RESERVED))
@run
async def test_reserved_template_variables(name: str) -> None:
    async with served() as server:
        response = await server.chat(chat_template_kwargs={name: 1})
        check(response, 400, "chat_template_kwargs", f"{name} cannot be set", "invalid_value")
        messages = [HELLO]
        response = await server.post("/tokenize", messages=messages, chat_template_kwargs={name: 1})
        check(response, 400, "chat_template_kwargs", f"{name} cannot be set", "invalid_value")


@run
async def test_routes_and_methods() -> None:
    async with served() as server:
        check(await server.client.get("/v2/x"), 404, None, "GET /v2/x", "unknown_endpoint")
        check(await server.post("/v1/models/"), 405, None, "POST", "method_not_allowed")
        check(await server.client.get("/v1/models/x"), 404, "model", "'x' does not exist")
        response = await server.client.get(CHAT_PATH)
        check(response, 405, None, f"GET {CHAT_PATH}", "method_not_allowed")
        assert response.headers["allow"] == "POST"


@run
async def test_body_too_large() -> None:
    async with served(max_request_bytes=1000) as server:
        long = {"messages": [{"role": "user", "content": "x" * 2000}]}
        response = await server.chat(**long)
        check(response, 413, None, "longer than 1000 bytes", "request_too_large")

        async def parts() -> Any:
            for _ in range(20):
                yield b" " * 100

        response = await server.client.post(
            CHAT_PATH, content=parts(), headers=JSON
        )  # no content-length
        check(response, 413, None, "longer than 1000 bytes", "request_too_large")


@run
async def test_api_key() -> None:
    async with served(api_key="sésame") as server:
        key = {"Authorization": "Bearer sésame".encode()}
        assert (await server.client.get("/health")).status_code == 200
        assert (await server.client.get("/liveness")).status_code == 200
        for headers in (
            {},
            {"Authorization": "Bearer x"},
            {"Authorization": "Basic sésame".encode()},
        ):
            response = await server.client.post(CHAT_PATH, json=CHAT, headers=headers)
            check(response, 401, None, "API key", "invalid_api_key")
            assert response.headers["www-authenticate"] == "Bearer"
            for path in ("/v1/models", "/metrics", "/", "/nope", "/version"):
                assert (await server.client.get(path, headers=headers)).status_code == 401
        assert (await server.client.post(CHAT_PATH, json=CHAT, headers=key)).status_code == 200
        assert (await server.client.get("/v1/models", headers=key)).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@run
async def test_queue_full_and_invalid_from_the_engine(stream: bool) -> None:
    async with served() as server:
        server.engine.refuse = RequestError("queue_full", "1024 requests are waiting")
        response = await server.chat(stream=stream)
        check(response, 429, None, "1024 requests", "queue_full")
        assert int(response.headers["retry-after"]) >= 1
        server.engine.refuse = RequestError("invalid", "does not fit the cache of 10 blocks")
        check(await server.complete(stream=stream), 400, None, "10 blocks")
        server.engine.refuse = RequestError("internal", "it broke")
        check(await server.complete(prompt=["a", "b"], stream=stream), 500, None, "it broke")
        server.engine.refuse = None
        assert (await server.chat(stream=stream)).status_code == 200
        assert not server.state.answers


BROKEN = [(-2, 500, "model_produced_nan", "NaN"), (-3, 400, "no_allowed_tokens", "forbid every")]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("sign", "status", "code", "words"), BROKEN)
@run
async def test_nothing_to_draw(sign: int, status: int, code: str, words: str, stream: bool) -> None:
    """The status while nothing was sent, an event afterwards; the request's other choices end."""
    async with served() as server:
        server.engine.script = lambda request, index: [sign]
        for answer in (await server.chat(stream=stream), await server.complete(stream=stream)):
            check(answer, status, None, words, code)
        many = await server.complete(prompt=["a", "b"], n=2, stream=stream)
        check(many, status, None, words, code)
        text = demo_tokenizer().encode("Hello")
        server.engine.script = lambda request, index: [*text, sign] if index else text * 9
        answer = await server.chat(stream=stream, n=2, max_tokens=50)
        if stream:
            assert answer.status_code == 200
            told = json.loads(answer.text.strip().split("\n\n")[-1].removeprefix("data: "))
            assert told["error"]["code"] == code and words in told["error"]["message"]
        else:
            check(answer, status, None, words, code)
        assert len(server.engine.aborted) >= 1
        assert 'sequences_total{finish_reason="er' in (await server.client.get("/metrics")).text
        server.engine.script = lambda request, index: text
        assert (await server.chat(stream=stream)).status_code == 200


@run
async def test_an_unforeseen_error_is_a_500_in_shape() -> None:
    async with served() as server:
        server.engine.script = lambda request, index: 1 // 0  # type: ignore[return-value]
        check(await server.chat(), 500, None, "internal error", "internal_error")


@run
async def test_not_ready_and_draining() -> None:
    async with served() as server:
        ready, server.engine.ready = server.engine.ready, None
        check(await server.chat(), 503, None, "still loading", "starting")
        assert (await server.client.get("/liveness")).status_code == 200
        response = await server.client.get("/health")
        assert (response.status_code, response.json()["status"]) == (503, "starting")
        assert (await server.client.get("/v1/models")).json()["data"][0]["max_model_len"] is None
        server.engine.ready = ready
        server.state.start_draining()
        response = await server.complete()
        check(response, 503, None, "shutting down", "draining")
        assert response.headers["retry-after"] == "1"
        response = await server.client.get("/health")
        assert (response.status_code, response.json()["status"]) == (503, "draining")
        assert response.headers["retry-after"] == "1"
        assert (await server.client.get("/liveness")).status_code == 200


@run
async def test_engine_death_reaches_everybody() -> None:
    import asyncio

    engine = fake_engine()
    async with served(engine) as server:
        engine.allowed_steps = lambda: 2 * (len(engine.streams) == 3)
        whole = asyncio.create_task(server.chat())
        streamed = asyncio.create_task(server.complete(prompt=["a", "b"], stream=True))
        while sum(sum(stream.done) for stream in engine.streams.values()) < 6:
            await asyncio.sleep(0)
        engine.die("signal SIGKILL")
        check(await whole, 503, None, "The engine has stopped: signal SIGKILL", "engine_dead")
        blocks = (await streamed).text.split("\n\n")
        assert '"code":"engine_dead"' in blocks[-2] and blocks[-1] == ""
        last = events((await streamed).text)[-1]
        assert set(last) == {"error"} and "[DONE]" not in (await streamed).text
        check(await server.chat(), 503, None, "The engine has stopped", "engine_dead")
        assert (await server.client.get("/health")).json()["status"] == "engine_dead"
        assert (await server.client.get("/liveness")).status_code == 503


@run
async def test_probes_enqueue_nothing() -> None:
    async with served() as server:
        server.engine.latest_stats = EngineStats(running=3)
        for path in ("/health", "/liveness", "/metrics", "/v1/models", "/version", "/"):
            assert (await server.client.get(path)).status_code == 200
        assert (await server.client.head("/health")).status_code == 200
        assert not server.engine.requests
