# SPDX-License-Identifier: Apache-2.0
"""/render answers what would be generated from, and generates nothing."""

from __future__ import annotations

from typing import Any

import pytest

from rtp_llm.server.offload.grammars import Grammars
from rtp_llm.testing.server.serving import CHAT, PROMPT, run, served

RENDER_CHAT, RENDER_COMPLETION = "/v1/chat/completions/render", "/v1/completions/render"
FIELDS = {
    *("request_id", "token_ids", "sampling_params", "model", "stream", "stream_options"),
    *("cache_salt", "priority", "features", "kv_transfer_params"),
}


@run
async def test_a_rendered_chat_is_what_the_engine_gets() -> None:
    requested: dict[str, Any] = {
        **{"temperature": 0.123, "top_p": 0.456, "frequency_penalty": 1.1, "max_tokens": 9},
        **{"stop": ["x"], "seed": 7, "logit_bias": {"5": 1.5}, "cache_salt": "s", "priority": 3},
        **{"logprobs": True, "top_logprobs": 2, "bad_words": "bad", "skip_special_tokens": False},
    }
    async with served() as server:
        answer = await server.post(RENDER_CHAT, **CHAT, **requested)
        assert answer.status_code == 200, answer.text
        assert not server.engine.requests
        rendered = answer.json()
        assert rendered.keys() == FIELDS and rendered["request_id"].startswith("chatcmpl-")
        assert rendered["features"] is None and rendered["kv_transfer_params"] is None
        assert (rendered["model"], rendered["cache_salt"], rendered["priority"]) == ("demo", "s", 3)
        await server.chat(**requested)
        (request,) = server.engine.requests
        assert rendered["token_ids"] == list(request.prompt_token_ids)
        params = rendered["sampling_params"]
        for name in ("temperature", "top_p", "frequency_penalty", "max_tokens", "seed", "top_k"):
            assert params[name] == getattr(request.params, name)
        assert params["stop"] == ["x"] and params["logit_bias"] == {"5": 1.5}
        assert params["logprobs"] == 2 and params["bad_words"] == ["bad"]
        assert params["skip_special_tokens"] is False and params["structured_outputs"] is None
        assert "bad_words_token_ids" not in params


@pytest.mark.parametrize("padding", [0, 5000], ids=["short", "long"])
@run
async def test_each_prompt_of_a_completion(padding: int) -> None:
    async with served() as server:
        body = {"prompt": ["Hello", "Good day"], "user": "x" * padding}
        rendered = (await server.post(RENDER_COMPLETION, **body)).json()
        assert not server.engine.requests
        await server.complete(**body)
        sent = [list(request.prompt_token_ids) for request in server.engine.requests]
        assert [each["token_ids"] for each in rendered] == sent
        for each in rendered:
            assert each.keys() == FIELDS and each["request_id"].startswith("cmpl-")
            assert each["model"] is None and each["sampling_params"]["max_tokens"] == 16


@pytest.mark.parametrize(("path", "body"), [(RENDER_CHAT, CHAT), (RENDER_COMPLETION, PROMPT)])
@run
async def test_streams_are_rendered_whole(path: str, body: dict[str, Any]) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with served() as server:
        answer = await server.post(path, **body, stream=True, stream_options=options)
        assert answer.headers["content-type"] == "application/json"
        rendered = answer.json() if path == RENDER_CHAT else answer.json()[0]
        assert rendered["stream"] is True and rendered["stream_options"] == options
        answer = await server.post(path, **body | {"model": "other"})
        assert answer.status_code == 404
        answer = await server.post(path, **body, min_tokens=-1)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "min_tokens"


@run
async def test_a_rendered_grammar_is_one_that_the_server_takes() -> None:
    async with served() as server:
        rendered = (await server.post(RENDER_CHAT, **CHAT, guided_choice=["a", "b"])).json()
        outputs = rendered["sampling_params"]["structured_outputs"]
        assert (await server.chat(structured_outputs=outputs)).status_code == 200
        await server.chat(guided_choice=["a", "b"])
        first, second = server.engine.requests
        assert first.grammar == second.grammar is not None


@run
async def test_a_grammar_is_compiled_once_for_rendering_and_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[bytes] = []
    make = Grammars._make

    async def counted(self: Grammars, source: bytes, *more: Any) -> Any:
        found.append(source)
        return await make(self, source, *more)

    monkeypatch.setattr(Grammars, "_make", counted)
    body = {"prompt": ["a", "b"], "guided_regex": "[ab]+"}
    async with served() as server:
        rendered = (await server.post(RENDER_COMPLETION, **body)).json()
        await server.post(RENDER_COMPLETION, **body)
        await server.complete(**body)
        (text,) = {each["sampling_params"]["structured_outputs"]["grammar"] for each in rendered}
        assert {each.grammar.text for each in server.engine.requests} == {text}
    assert len(found) == 1
