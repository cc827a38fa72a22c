# SPDX-License-Identifier: Apache-2.0
"""No body to Responses or Messages yields a 5xx: items and blocks with values of any kind."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rtp_llm.testing.server.agent_clients import agents
from rtp_llm.testing.server.anthropic_events import read_events as read_messages
from rtp_llm.testing.server.responses_events import read_events as read_responses
from rtp_llm.testing.server.serving import TEXT

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
SCALARS = st.sampled_from([None, True, 0, -1, 3, 10**18, 0.5, "", "a", "\ud800"])
ANY = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
    ),
    max_leaves=4,
)


def objects(**fields: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Some of the fields, with good values or any."""
    return st.fixed_dictionaries({}, optional={name: each | ANY for name, each in fields.items()})


def one_of(*words: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(words)


TEXTS = one_of("", "Hello", "x-anthropic-billing-header: a")
PARTS = objects(type=one_of("text", "input_text", "output_text", "input_image"), text=TEXTS)
CONTENT = TEXTS | st.lists(PARTS, max_size=2)
NAMES = one_of("f", "g")
SCHEMAS = one_of({}, {"type": "object"}, {"type": "array", "uniqueItems": True}, {"type": 5})
ITEMS = objects(
    type=one_of(
        "message", "function_call", "function_call_output", "reasoning", "item_reference", "x"
    ),
    id=NAMES,
    role=one_of("user", "assistant", "developer"),
    content=CONTENT,
    call_id=NAMES,
    name=NAMES,
    arguments=one_of("{}", "{"),
    output=CONTENT,
    summary=st.lists(PARTS, max_size=1),
    encrypted_content=one_of("rtp-llm-1:aGk=", "rtp-llm-1:?", "?"),
)
TOOLS = objects(
    type=one_of("function", "namespace", "web_search"),
    name=NAMES,
    parameters=SCHEMAS,
    input_schema=SCHEMAS,
    strict=st.booleans(),
    tools=st.lists(objects(type=one_of("function"), name=NAMES), max_size=2),
    defer_loading=st.booleans(),
)
RESPONSES = objects(
    input=st.lists(ITEMS, min_size=1, max_size=4) | TEXTS,
    tools=st.lists(TOOLS, max_size=2),
    tool_choice=one_of("auto", "required") | objects(type=one_of("function"), name=NAMES),
    text=objects(format=objects(type=one_of("json_schema", "json_object"), schema=SCHEMAS)),
    reasoning=objects(effort=one_of("low", "none")),
    include=st.lists(one_of("reasoning.encrypted_content"), max_size=1),
    max_output_tokens=st.integers(1, 20),
    previous_response_id=NAMES,
    background=st.booleans(),
    stream=st.booleans(),
    store=st.booleans(),
    metadata=st.dictionaries(NAMES, TEXTS, max_size=1),
).map(lambda body: {"input": "Hello", **body})
BLOCKS = objects(
    type=one_of("text", "tool_use", "tool_result", "thinking", "redacted_thinking", "x"),
    text=TEXTS,
    id=NAMES,
    name=NAMES,
    input=st.dictionaries(NAMES, SCALARS, max_size=1),
    tool_use_id=NAMES,
    content=CONTENT | st.lists(objects(type=one_of("tool_reference"), tool_name=NAMES), max_size=1),
    is_error=st.booleans(),
    thinking=TEXTS,
    signature=one_of("rtp-llm-1:aGk=", "?"),
    data=TEXTS,
)
TURNS = objects(
    role=one_of("user", "assistant", "system"), content=TEXTS | st.lists(BLOCKS, max_size=3)
)
MESSAGES = objects(
    messages=st.lists(TURNS, min_size=1, max_size=3),
    system=CONTENT,
    tools=st.lists(TOOLS, max_size=2),
    tool_choice=objects(type=one_of("auto", "any", "tool", "none"), name=NAMES),
    thinking=objects(type=one_of("enabled", "adaptive"), budget_tokens=st.integers(1, 9)),
    output_config=objects(
        effort=one_of("high"), format=objects(type=one_of("json_schema"), schema=SCHEMAS)
    ),
    max_tokens=st.integers(1, 20),
    stop_sequences=st.lists(TEXTS, max_size=2),
    stream=st.booleans(),
).map(lambda body: {"max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}], **body})
REQUESTS = st.one_of(
    RESPONSES.map(lambda body: ("/v1/responses", body)),
    MESSAGES.map(lambda body: ("/v1/messages", body)),
    MESSAGES.map(lambda body: ("/v1/messages/count_tokens", body)),
    RESPONSES.map(lambda body: ("/v1/responses/input_tokens", body)),
)


def send(requests: list[tuple[str, dict[str, Any]]]) -> list[int]:
    """The statuses; asserts that answers are well formed, and that nothing is left of them."""

    async def run() -> list[int]:
        statuses = []
        async with agents(TEXT, max_stored_responses=3, max_stored_response_bytes=9999) as case:
            for path, body in requests:
                headers = {"content-type": "application/json"}
                data = json.dumps(body).encode()
                answer = await case.server.client.post(path, content=data, headers=headers)
                statuses.append(answer.status_code)
                if not answer.is_success:
                    assert "error" in answer.json()
                    assert (answer.json().get("type") == "error") == ("messages" in path)
                elif body.get("stream") is True and not path.endswith("_tokens"):
                    read = read_responses if path == "/v1/responses" else read_messages
                    assert len(read(answer.text)) > 2
            while case.server.state.answers:
                await asyncio.sleep(0.001)
            assert not case.engine.streams
        return statuses

    return asyncio.run(run())


@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
@given(st.lists(REQUESTS, min_size=1, max_size=8))
def test_bodies_of_any_kind(requests: list[tuple[str, dict[str, Any]]]) -> None:
    assert all(status < 500 for status in send(requests))


def test_the_fuzzer_also_finds_good_requests() -> None:
    """Guards against a fuzzer whose requests all fail at the first check."""
    good: list[int] = []

    @settings(max_examples=25, deadline=None, database=None, suppress_health_check=SLOW)
    @given(st.lists(REQUESTS, min_size=4, max_size=8))
    def collect(requests: list[tuple[str, dict[str, Any]]]) -> None:
        good.extend(status for status in send(requests) if status == 200)

    collect()
    assert len(good) > 10
