# SPDX-License-Identifier: Apache-2.0
"""Responses that are stored: conversations go on with them, and clients get them again."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseItemList

from rtp_llm.testing.server.agent_clients import Agents, agents
from rtp_llm.testing.server.serving import TEXT, run

STORED: dict[str, Any] = {"max_stored_responses": 4}


async def ended(case: Agents, response_id: str) -> Any:
    while True:
        response = await case.openai.responses.retrieve(response_id)
        if response.status not in ("queued", "in_progress"):
            return response
        await asyncio.sleep(0.005)


def texts(item: Any) -> str:
    return "".join(part.text for part in item.content)


@run
async def test_a_conversation_goes_on_without_its_instructions() -> None:
    async with agents(TEXT, **STORED) as case:
        create = case.openai.responses.create
        first = await create(model="demo", input="Hello", instructions="Be short.")
        assert first.store is True  # type: ignore[attr-defined]
        second = await create(model="demo", input="And then?", previous_response_id=first.id)
        assert second.previous_response_id == first.id
        user, assistant = "<|im_start|>user\n", "<|im_start|>assistant\n"
        said = f"{user}Hello<|im_end|>\n{assistant}{TEXT}<|im_end|>\n{user}And then?<|im_end|>\n"
        assert case.prompt == said + assistant
        # Once more, now that the first is gone: the second has all of it.
        await case.openai.responses.delete(first.id)
        await create(model="demo", input="More", previous_response_id=second.id)
        assert case.prompt.startswith(said)


@run
async def test_what_is_stored_comes_back_until_it_is_deleted() -> None:
    async with agents(TEXT, **STORED) as case:
        responses = case.openai.responses
        items = [{"role": "user", "content": text} for text in ("a", "b", "c")]
        made = await responses.create(model="demo", input=items)  # type: ignore[arg-type]
        assert (await responses.retrieve(made.id)).to_dict() == made.to_dict()
        page = await responses.input_items.list(made.id, order="asc", limit=2)
        assert [texts(item) for item in page.data] == ["a", "b"]
        assert page.has_next_page()
        rest = await page.get_next_page()
        assert [texts(item) for item in rest.data] == ["c"]
        newest = await responses.input_items.list(made.id)
        assert [texts(item) for item in newest.data] == ["c", "b", "a"]
        await responses.delete(made.id)
        for ask in (responses.retrieve, responses.delete, responses.cancel):
            with pytest.raises(openai.NotFoundError):
                await ask(made.id)


WRITTEN: list[Any] = [
    "Hello",
    [
        {"role": "developer", "content": "Be short."},
        {"type": "message", "role": "user", "content": [{"type": "text", "text": "Add."}]},
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "?"},
        {"role": "assistant", "content": "I add.", "phase": "commentary", "id": ""},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}", "id": None},
        {"type": "function_call_output", "call_id": "c1", "output": "3", "status": None},
        {"type": "function_call", "call_id": "c2", "name": "add", "arguments": "{}", "id": "fc_2"},
        {
            "type": "function_call_output",
            "call_id": "c2",
            "output": [{"type": "output_text", "text": "3"}],
        },
        {"type": "custom_tool_call", "call_id": "c3", "name": "patch", "input": "a"},
        {"type": "custom_tool_call_output", "call_id": "c3", "output": "done"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "user", "content": "And then?"},
    ],
]


@pytest.mark.parametrize("written", WRITTEN)
@run
async def test_items_are_listed_in_full(written: Any) -> None:
    async with agents(TEXT, **STORED) as case:
        made = await case.openai.responses.create(model="demo", input=written)
        key = {"authorization": "Bearer a key"}
        answer = await case.server.client.get(f"/v1/responses/{made.id}/input_items", headers=key)
        listed = answer.json()
        ResponseItemList.model_validate(listed, strict=True)
        items = listed["data"]
        assert all(item["status"] == "completed" and item["id"] for item in items)
        assert len({item["id"] for item in items}) == len(items)
        said = [item for item in items if item["type"] == "message"]
        assert all(isinstance(item["content"], list) for item in said)
        # What is stored is the same prompt as what was sent.
        items = [{"type": "item_reference", "id": item["id"]} for item in reversed(items)]
        before = case.prompt
        await case.openai.responses.create(model="demo", input=items)  # type: ignore[arg-type]
        assert case.prompt == before


@run
async def test_an_item_can_be_referred_to() -> None:
    async with agents(TEXT, **STORED) as case:
        first = await case.openai.responses.create(model="demo", input="Hello")
        items = [
            {"type": "item_reference", "id": first.output[0].id},
            {"role": "user", "content": "And then?"},
        ]
        second = await case.openai.responses.create(model="demo", input=items)  # type: ignore[arg-type]
        assert f"<|im_start|>assistant\n{TEXT}<|im_end|>" in case.prompt
        listed = await case.openai.responses.input_items.list(second.id, order="asc")
        assert listed.data[0].id == first.output[0].id


@run
async def test_a_stream_is_stored_when_it_has_ended() -> None:
    async with agents(TEXT, **STORED) as case:
        async with case.openai.responses.stream(model="demo", input="Hello") as stream:
            made = await stream.get_final_response()
        assert (await case.openai.responses.retrieve(made.id)).output_text == TEXT


@run
async def test_store_false_stores_nothing() -> None:
    async with agents(TEXT, **STORED) as case:
        made = await case.openai.responses.create(model="demo", input="Hello", store=False)
        with pytest.raises(openai.NotFoundError):
            await case.openai.responses.retrieve(made.id)


@run
async def test_another_key_sees_nothing() -> None:
    async with agents(TEXT, **STORED) as case:
        made = await case.openai.responses.create(model="demo", input="Hello")
        other = case.openai.with_options(api_key="another")
        with pytest.raises(openai.NotFoundError):
            await other.responses.retrieve(made.id)
        with pytest.raises(openai.NotFoundError):
            await other.responses.create(model="demo", input="a", previous_response_id=made.id)
        with pytest.raises(openai.NotFoundError):
            item = {"type": "item_reference", "id": made.output[0].id}
            await other.responses.create(model="demo", input=[item])  # type: ignore[list-item]


@run
async def test_in_the_background() -> None:
    async with agents(TEXT, **STORED) as case:
        case.engine.step_seconds = 0.005
        begun = await case.openai.responses.create(model="demo", input="Hello", background=True)
        assert (begun.status, begun.background, begun.output) == ("queued", True, [])
        with pytest.raises(openai.BadRequestError, match="still generated"):
            await case.openai.responses.create(
                model="demo", input="a", previous_response_id=begun.id
            )
        response = await ended(case, begun.id)
        assert (response.status, response.output_text) == ("completed", TEXT)
        assert not case.server.state.answers


@run
async def test_what_is_cancelled_is_aborted_in_the_engine() -> None:
    async with agents(TEXT * 99, **STORED) as case:
        case.engine.step_seconds = 0.005
        responses = case.openai.responses
        begun = await responses.create(model="demo", input="Hello", background=True)
        while not case.engine.steps:
            await asyncio.sleep(0.001)
        cancelled = await responses.cancel(begun.id)
        assert cancelled.status == "cancelled"
        assert case.engine.aborted and not case.engine.streams
        assert (await responses.cancel(begun.id)).status == "cancelled"
        begun = await responses.create(model="demo", input="Hello", background=True)
        await responses.delete(begun.id)
        assert not case.engine.streams and not case.server.state.answers
        made = await responses.create(model="demo", input="Hello", max_output_tokens=2)
        with pytest.raises(openai.BadRequestError, match="background=true"):
            await responses.cancel(made.id)


@run
async def test_what_fails_in_the_background_says_so() -> None:
    async with agents(TEXT * 99, **STORED) as case:
        case.engine.step_seconds = 0.005
        begun = [
            await case.openai.responses.create(model="demo", input="Hello", background=True)
            for _ in range(4)
        ]
        with pytest.raises(openai.RateLimitError, match="All responses that may be stored") as full:
            await case.openai.responses.create(model="demo", input="Hello", background=True)
        assert full.value.response.headers["retry-after"] == "1"
        case.engine.die("killed by the test")
        for each in begun:
            response = await ended(case, each.id)
            assert response.status == "failed"
            assert "killed by the test" in response.error.message


@run
async def test_what_never_fits_into_the_store_is_refused_for_good() -> None:
    async with agents(TEXT, **STORED, max_stored_response_bytes=9000) as case:
        long = {"model": "demo", "input": "Hello " * 2000, "background": True}
        answer = await case.server.client.post("/v1/responses", json=long)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "background"
        assert "--max-stored-response-bytes" in answer.text
        short = {"model": "demo", "input": "Hello", "background": True}
        assert (await case.server.client.post("/v1/responses", json=short)).is_success


@run
async def test_what_the_shutdown_cuts_says_so() -> None:
    async with agents(TEXT * 99, **STORED) as case:
        case.engine.step_seconds = 0.005
        begun = await case.openai.responses.create(model="demo", input="Hello", background=True)
        for answer in [*case.server.state.answers]:
            answer.cut()
        response = await ended(case, begun.id)
        assert (response.status, response.error.code) == ("failed", "server_error")
        assert not case.server.state.answers


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("?limit=0", "limit"),
        ("?limit=101", "limit"),
        ("?limit=x", "limit"),
        ("?limit=000100000", "limit"),
        ("?after=x", "after"),
        ("?order=newest", "order"),
    ],
)
@run
async def test_a_bad_question_for_items(query: str, param: str) -> None:
    async with agents(TEXT, **STORED) as case:
        made = await case.openai.responses.create(model="demo", input="Hello")
        place = f"/v1/responses/{made.id}"
        key = {"authorization": "Bearer a key"}
        answer = await case.server.client.get(f"{place}/input_items{query}", headers=key)
        assert answer.status_code == (404 if param == "after" else 400)
        assert answer.json()["error"]["param"] == param
