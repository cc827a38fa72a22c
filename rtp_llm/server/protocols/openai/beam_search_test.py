# SPDX-License-Identifier: Apache-2.0
"""Beam searches over HTTP: the fields that ask for them, and the answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from rtp_llm.request.beam_search import BeamSearch
from rtp_llm.testing.server.keys import bearer, entry, key_file
from rtp_llm.testing.server.serving import events, fake_engine, listening, run, served, wait_for

WORDS = ("best of all", "second", "third one here")


@pytest.mark.parametrize(
    ("fields", "width", "search"),
    [
        ({"use_beam_search": True, "n": 3}, 3, {"num_return_sequences": 3}),
        ({"use_beam_search": True}, 1, {"num_return_sequences": 1}),
        ({"use_beam_search": True, "best_of": 4, "n": 2}, 4, {"num_return_sequences": 2}),
        ({"beam_width": 4}, 4, {"num_return_sequences": 1}),
        ({"num_beams": 4, "beam_width": 4, "n": 3}, 4, {"num_return_sequences": 3}),
        (
            {"num_beams": 2, "length_penalty": 0.5, "early_stopping": "never", "temperature": 1},
            2,
            {"length_penalty": 0.5, "early_stopping": "never", "num_return_sequences": 1},
        ),
        (
            {"variable_num_beams": [2, 4, 3], "n": 3},
            4,
            {"variable_num_beams": (2, 4, 3), "num_return_sequences": 3},
        ),
        (
            {"num_beams": 6, "num_beam_groups": 3, "diversity_penalty": 0.5, "n": 2},
            6,
            {"num_beam_groups": 3, "diversity_penalty": 0.5, "num_return_sequences": 2},
        ),
        ({"num_beams": 1, "n": 2}, 2, None),
        ({"use_beam_search": False, "length_penalty": 1, "early_stopping": False}, 1, None),
    ],
)
@run
async def test_the_fields_that_ask_for_beams(
    fields: dict[str, Any], width: int, search: dict[str, Any] | None
) -> None:
    async with served() as server:
        for ask in (server.chat, server.complete):
            answer = await ask(**fields)
            assert answer.status_code == 200, answer.text
            (request,) = server.engine.requests
            server.engine.requests.clear()
            assert request.sampling.n == width
            assert request.beam_search == (search and BeamSearch(**search))
            if search:
                assert (request.sampling.temperature, request.sampling.top_p) == (0, 1)
                assert len(answer.json()["choices"]) == search["num_return_sequences"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"beam_width": 2, "num_beams": 3}, "num_beams"),
        ({"use_beam_search": True, "beam_width": 2, "best_of": 3}, "best_of"),
        ({"use_beam_search": False, "beam_width": 2}, "beam_width"),
        ({"beam_width": 2, "n": 3}, "n"),
        ({"beam_width": 0}, "beam_width"),
        ({"beam_width": 33}, "beam_width"),
        ({"use_beam_search": True, "n": 200}, "n"),
        ({"length_penalty": 2}, "length_penalty"),
        ({"early_stopping": True}, "early_stopping"),
        ({"beam_width": 2, "length_penalty": 1e300}, "length_penalty"),
        ({"beam_width": 4, "variable_num_beams": [2, 3]}, "variable_num_beams"),
        ({"variable_num_beams": [4, 0]}, "variable_num_beams"),
        ({"variable_num_beams": [2] * 1025}, "variable_num_beams"),
        ({"variable_num_beams": [4, 2], "n": 3}, "n"),
        ({"variable_num_beams": [4, 2], "num_beam_groups": 2}, "variable_num_beams"),
        ({"beam_width": 4, "num_beam_groups": 3}, "num_beam_groups"),
        ({"beam_width": 4, "diversity_penalty": 0.5}, "diversity_penalty"),
        ({"num_beam_groups": 2}, "num_beam_groups"),
        ({"beam_width": 2, "temperature": 0.5}, "temperature"),
        ({"beam_width": 2, "top_k": 5}, "top_k"),
        ({"beam_width": 2, "stop": "x", "skip_special_tokens": False}, "stop"),
        ({"beam_width": 2, "stop_regex": "x"}, "stop_regex"),
        ({"beam_width": 2, "logprob_token_ids": [1]}, "logprob_token_ids"),
    ],
)
@run
async def test_what_is_refused(fields: dict[str, Any], param: str) -> None:
    async with served() as server:
        for ask in (server.chat, server.complete):
            answer = await ask(**fields)
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["param"] == param
        assert not server.engine.requests


@run
async def test_only_chats_and_completions_have_beams() -> None:
    async with served() as server:
        for path, body in (
            ("/v1/responses", {"input": "hi"}),
            ("/v1/completions/render", {"prompt": "hi", "beam_width": 2}),
            ("/v1/chat/completions/batch", {"messages": [[{"role": "user", "content": "hi"}]]}),
        ):
            answer = await server.post(path, use_beam_search=True, **body)
            assert answer.status_code == 400, answer.text
            assert "Only chats and completions are found by a beam search" in answer.text
        answer = await server.post("/api/generate", prompt="hi", options={"num_beams": 2})
        assert answer.status_code == 400
        assert "num_beams is not supported" in answer.json()["error"]


@run
async def test_the_best_come_whole_and_the_usage_counts_them() -> None:
    async with served(fake_engine(*WORDS)) as server:
        asked: dict[str, Any] = {"beam_width": 3, "n": 2, "max_tokens": 40}
        chat = (await server.chat(**asked, logprobs=True)).json()
        assert [each["message"]["content"] for each in chat["choices"]] == [*WORDS[:2]]
        counts = [len(each["logprobs"]["content"]) for each in chat["choices"]]
        whole = (await server.complete(prompt=["a", "b"], **asked, logprobs=0)).json()
        assert [each["text"] for each in whole["choices"]] == [*WORDS[:2]] * 2
        assert [each["finish_reason"] for each in whole["choices"]] == ["stop"] * 4
        shown = 2 * sum(counts)
        assert whole["usage"]["completion_tokens"] == shown

        options = {"include_usage": True}
        answer = await server.complete(
            prompt=["a", "b"], stream=True, stream_options=options, **asked
        )
        *chunks, last, done = events(answer.text)
        assert {each["choices"][0]["index"] for each in chunks} == {0, 1, 2, 3}
        assert len(chunks) == 4 and done == "[DONE]"
        assert last["usage"]["completion_tokens"] == shown
        assert [each["choices"][0]["finish_reason"] for each in chunks] == ["stop"] * 4


@run
async def test_too_few_sequences() -> None:
    async with served(fake_engine("a", "b")) as server:
        server.engine.script = lambda request, index: [[5], [-4]][index]
        answer = await server.chat(use_beam_search=True, n=2)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "too_few_sequences"


def test_a_key_pays_for_all_beams(tmp_path: Path) -> None:
    """Each as long as the longest choice; of a search that is cut short, what it asked for."""
    path = key_file(tmp_path / "keys", entry("sk", "a", tokens_per_minute=1000))
    engine, headers = fake_engine("word " * 200, step_seconds=0.001), bearer("sk")
    asked: dict[str, Any] = {"prompt": [5, 6], "beam_width": 4, "n": 2}
    with listening(engine, api_key_file=path) as url, httpx.Client(headers=headers) as client:

        def left() -> int:
            return int(client.get(f"{url}/version").headers["x-ratelimit-remaining-tokens"])

        answer = client.post(f"{url}/v1/completions", json=asked | {"max_tokens": 10})
        assert answer.json()["usage"]["completion_tokens"] == 20
        assert 1000 - 42 <= left() <= 1000 - 42 + 16  # a minute gives 1000 back
        for more in ({}, {"stream": True}):
            before, engine.allowed_steps = left(), lambda: 30
            with pytest.raises(httpx.ReadTimeout):
                fields = asked | {"max_tokens": 50} | more
                client.post(f"{url}/v1/completions", json=fields, timeout=0.5)
            wait_for(lambda: not engine.streams, 20)
            assert left() <= before - 150
        assert len(engine.aborted) == 2
