# SPDX-License-Identifier: Apache-2.0
"""Several conversations in one request: a choice for each, as of a chat of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rtp_llm.engine.messages import AddRequest
from rtp_llm.testing.server.fake_engine import FakeEngine
from rtp_llm.testing.server.serving import Served, demo_tokenizer, run, served

PATH = "/v1/chat/completions/batch"
WORDS = ("Hello", "Where is the house?", "x")
CHATS = [[{"role": "user", "content": text}] for text in WORDS]


def own_length() -> Callable[[AddRequest, int], Sequence[int]]:
    """Each answer is how long its prompt is."""
    encode = demo_tokenizer().encode
    return lambda request, index: encode(f"{len(request.prompt_token_ids)} tokens", False)


async def alone(server: Served, **body: Any) -> list[dict[str, Any]]:
    answers = [await server.chat(messages=chat, **body) for chat in CHATS]
    return [answer.json() for answer in answers]


@pytest.mark.parametrize("padding", [0, 5000], ids=["short", "long"])
@run
async def test_choices_are_those_of_single_chats(padding: int) -> None:
    requested = {"max_tokens": 4, "logprobs": True, "top_logprobs": 2, "user": "x" * padding}
    async with served(FakeEngine(own_length())) as server:
        answer = await server.post(PATH, messages=CHATS, **requested)
        assert answer.status_code == 200, answer.text
        batch, single = answer.json(), await alone(server, **requested)
        assert batch["object"] == "chat.completion" and batch["model"] == "demo"
        for number, (choice, own) in enumerate(zip(batch["choices"], single, strict=True)):
            assert choice == own["choices"][0] | {"index": number}
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert batch["usage"][name] == sum(each["usage"][name] for each in single)
        texts = {choice["message"]["content"] for choice in batch["choices"]}
        assert len(texts) == len(WORDS)


@run
async def test_what_is_asked_of_prompts_comes_with_the_choices() -> None:
    requested = {"max_tokens": 3, "prompt_logprobs": 1, "return_token_ids": True}
    async with served(FakeEngine(own_length())) as server:
        batch = (await server.post(PATH, messages=CHATS, **requested)).json()
        single = await alone(server, **requested)
        for choice, own in zip(batch["choices"], single, strict=True):
            for name in ("prompt_token_ids", "prompt_logprobs"):
                assert choice[name] == own[name] and name not in batch
            assert choice["token_ids"] == own["choices"][0]["token_ids"]


@run
async def test_each_has_its_own_echo() -> None:
    chats = [[*CHATS[0], {"role": "assistant", "content": text}] for text in ("A", "B")]
    requested = {"echo": True, "continue_final_message": True, "add_generation_prompt": False}
    async with served() as server:
        answer = await server.post(PATH, messages=[*chats, CHATS[0]], max_tokens=3)
        plain = [choice["message"]["content"] for choice in answer.json()["choices"]]
        answer = await server.post(PATH, messages=chats, max_tokens=3, **requested)
        shown = [choice["message"]["content"] for choice in answer.json()["choices"]]
        assert [text[:1] for text in shown] == ["A", "B"]
        assert [text[1:] for text in shown] == plain[:2]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [CHATS[0], []]}, "messages"),
        ({"messages": CHATS[0]}, "messages[0]"),
        ({"messages": [CHATS[0]] * 33}, "messages"),
        ({"stream": True}, "stream"),
        ({"n": 2}, "n"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"model": "other"}, "model"),
    ],
)
@run
async def test_what_is_not_taken(fields: dict[str, Any], param: str) -> None:
    async with served() as server:
        answer = await server.post(PATH, **{"messages": CHATS} | fields)
        assert answer.status_code == (404 if param == "model" else 400), answer.text
        assert answer.json()["error"]["param"] == param
        assert not server.engine.requests


@run
async def test_a_schema_holds_for_all() -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer"}}}
    async with served() as server:
        answer = await server.post(PATH, messages=CHATS, response_format=schema, max_tokens=4)
        assert answer.status_code == 200, answer.text
        texts = {each.grammar.text for each in server.engine.requests if each.grammar}
        assert len(server.engine.requests) == len(WORDS) and len(texts) == 1
