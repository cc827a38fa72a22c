# SPDX-License-Identifier: Apache-2.0
"""Bodies of every endpoint: what /openapi.json excludes is refused, what it has is taken."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest

from rtp_llm.server.openapi.openapi import BODIES
from rtp_llm.testing.server.pooled_bodies import POOLED_BODIES
from rtp_llm.testing.server.serving import Served, fake_engine, run, served

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
BATCH, TOKENIZE = f"{CHAT}/batch", "/tokenize"
USER = {"role": "user", "content": "hi"}
MESSAGES = [USER]
BODY: dict[str, dict[str, Any]] = {
    CHAT: {"messages": MESSAGES},
    BATCH: {"messages": [MESSAGES]},
    f"{CHAT}/render": {"messages": MESSAGES},
    COMPLETION: {"prompt": "a house."},
    f"{COMPLETION}/render": {"prompt": "a house."},
    "/invocations": {"messages": MESSAGES},
    "/v1/responses": {"input": "hi"},
    "/v1/responses/input_tokens": {"input": "hi"},
    "/v1/messages": {"max_tokens": 3, "messages": MESSAGES},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/api/chat": {"messages": MESSAGES},
    "/api/generate": {"prompt": "hi"},
    "/api/show": {"model": "demo"},
    "/infill": {"input_prefix": "a", "input_suffix": "b"},
    **POOLED_BODIES,
    TOKENIZE: {"prompt": "a"},
    "/detokenize": {"tokens": [1, 2]},
}
TOOLS = [{"type": "function", "function": {"name": "f"}}]
SAID = {"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": "{}"}}
# (path, what differs from BODY, whether the server takes it)
TAKEN: list[tuple[str, dict[str, Any], bool]] = [
    (TOKENIZE, {"chat_template": "x"}, False),
    (TOKENIZE, {"chat_template": ""}, True),
    (TOKENIZE, {"documents": [{"text": "a"}]}, True),
    (TOKENIZE, {"prompt": None, "messages": MESSAGES, "documents": [{"text": "a"}]}, False),
    (TOKENIZE, {"prompt": None, "messages": MESSAGES, "tools": []}, True),
    (TOKENIZE, {"prompt": None, "messages": MESSAGES, "tools": TOOLS}, False),
    (TOKENIZE, {"tools": TOOLS}, True),
    (CHAT, {"max_tokens": 0, "max_completion_tokens": 4}, False),
    (CHAT, {"max_tokens": 256, "max_completion_tokens": 4}, False),
    (CHAT, {"max_tokens": 9, "max_completion_tokens": 4}, True),
    (CHAT, {"logit_bias": {"01": 1}}, False),
    (CHAT, {"logit_bias": {"10": 1}}, True),
    (CHAT, {"best_of": 1}, True),
    (CHAT, {"best_of": 2, "n": 2}, True),
    (COMPLETION, {"best_of": 2, "n": 2}, True),
    (CHAT, {"use_beam_search": True, "n": 2, "early_stopping": "never"}, True),
    (CHAT, {"early_stopping": "always"}, False),
    (COMPLETION, {"beam_width": 2, "length_penalty": -100}, True),
    (COMPLETION, {"beam_width": 33}, False),
    (COMPLETION, {"beam_width": 2, "length_penalty": 101}, False),
    (BATCH, {"use_beam_search": False, "length_penalty": 1}, True),
    (BATCH, {"use_beam_search": True}, False),
    (CHAT, {"reasoning_effort": ""}, True),
    (CHAT, {"thinking_token_budget": -1, "thinking_budget": -1}, True),
    (CHAT, {"thinking_token_budget": -1, "thinking_budget": -2}, False),
    (CHAT, {"thinking_token_budget": -1, "thinking_budget": 5}, False),
    (CHAT, {"model": "other"}, False),
    (CHAT, {"n": 33}, False),
    (CHAT, {"truncate_prompt_tokens": 0}, False),
    (CHAT, {"truncate_prompt_tokens": -1}, True),
    (CHAT, {"truncate_prompt_tokens": 257}, False),
    (CHAT, {"stop": [""]}, False),
    (CHAT, {"stop": ""}, False),
    (CHAT, {"cache_salt": "x" * 1024}, True),
    (CHAT, {"cache_salt": "x" * 1025}, False),
    (CHAT, {"bad_words": ""}, True),
    (CHAT, {"bad_words": [""]}, False),
    (CHAT, {"regex": "AAA"}, True),
    (CHAT, {"guided_choice": ["a", "b"]}, True),
    (CHAT, {"structural_tag": {}}, False),
    (CHAT, {"structural_tag": {"format": {"type": "any_text"}}}, True),
    (CHAT, {"structural_tag": ""}, True),
    (CHAT, {"functions": []}, True),
    (CHAT, {"tools": TOOLS, "tool_choice": "none"}, True),
    (CHAT, {"functions": [{"name": "f"}], "function_call": "none"}, True),
    (CHAT, {"messages": [USER | {"content": [{"type": "refusal", "refusal": "no"}]}]}, True),
    (CHAT, {"messages": [USER | {"content": [{"type": "image_url"}]}]}, False),
    (CHAT, {"messages": [USER | {"function_call": "none"}]}, False),
    (CHAT, {"messages": [{"role": "user"}]}, False),
    (CHAT, {"messages": [USER, {"role": "assistant"}]}, True),
    (BATCH, {"stream_options": {"a": 1}}, True),
    (BATCH, {"stream_options": {"include_usage": None}}, True),
    (BATCH, {"stream_options": {"include_usage": False}}, False),
    (COMPLETION, {"max_tokens": 0, "echo": True}, True),
    (COMPLETION, {"max_tokens": 0, "echo": True, "structural_tag": {}}, False),
    ("/v1/responses", {"max_output_tokens": 0}, False),
    ("/v1/responses", {"max_output_tokens": 256}, False),
    ("/v1/responses", {"max_output_tokens": 9, "temperature": 101}, False),
    ("/v1/responses", {"max_output_tokens": 9, "temperature": 0}, True),
    ("/v1/messages", {"max_tokens": 0}, False),
    ("/v1/messages", {"max_tokens": 100_000}, True),
    ("/v1/messages", {"messages": []}, False),
    ("/v1/messages", {"stop_sequences": [""]}, False),
    ("/api/show", {"name": "other"}, True),
]


class Bodies:
    """Validators of the document that a server gives of itself."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._kinds = document["components"]["schemas"]

    @staticmethod
    async def of(server: Served) -> Bodies:
        return Bodies((await server.client.get("/openapi.json")).json())

    def _schema(self, path: str) -> dict[str, Any]:
        content = self._document["paths"][path]["post"]["requestBody"]["content"]
        schema: dict[str, Any] = content["application/json"]["schema"]
        return schema

    def validator(self, path: str) -> Any:
        components = {"components": self._document["components"]}
        return jsonschema_rs.validator_for(self._schema(path) | components)

    def fields(self, path: str) -> set[str]:
        """Of all alternatives that a body has."""
        found, left = set(), [self._schema(path)]
        while left:
            schema = left.pop()
            if "$ref" in schema:
                schema = self._kinds[schema["$ref"].rpartition("/")[2]]
            found.update(schema.get("properties", ()))
            left += schema.get("anyOf", ())
        return found


@run
async def test_what_the_schema_excludes_is_refused_and_what_it_has_is_taken() -> None:
    async with served(fake_engine("a house.")) as server:
        bodies = await Bodies.of(server)
        for path, more, taken in TAKEN:
            answer = await server.client.post(path, json=BODY[path] | more)
            assert answer.is_success == taken, (more, answer.text)
            assert bodies.validator(path).is_valid(BODY[path] | more) == taken, (path, more)


@run
async def test_what_only_a_template_of_the_request_reads_is_in_the_schema() -> None:
    template = (
        "{{ documents }}{{ reasoning_effort }}{{ enable_thinking }}"
        "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ m.tool_calls }}{% endfor %}"
    )
    async with served(fake_engine("a house."), trust_request_chat_template=True) as server:
        validator = (await Bodies.of(server)).validator(CHAT)
        for more in (
            {"documents": [{"text": "a"}]},
            {"reasoning_effort": "high"},
            {"enable_thinking": True},
            {"messages": [{"role": "critic", "content": "a"}]},
            {"messages": [USER, SAID, {"role": "function", "name": "f", "content": "a"}, USER]},
        ):
            whole = BODY[CHAT] | {"chat_template": template} | more
            answer = await server.client.post(CHAT, json=whole)
            assert answer.is_success, (more, answer.text)
            assert validator.is_valid(whole), more


ODD: list[Any] = [
    *(None, False, True, 0, 1, -1, 0.5, -2, 101, 2**31, 2**63, -(2**63) - 1),
    *("", "AAA", "a" * 1025, "auto"),
    *([], ["a"], [""], [512], [None], ["a"] * 65, [{}]),
    *({}, {"type": "text"}, {"include_usage": None}, {"01": 1}, {"1": 101}, TOOLS),
]


# Of the others the bodies are the same.
@pytest.mark.parametrize(
    "path", [each for each in BODIES if not each.endswith(("/render", "/invocations"))]
)
@run
async def test_no_field_takes_more_than_the_schema_says(path: str) -> None:
    async with served(fake_engine("a house.")) as server:
        bodies = await Bodies.of(server)
        validator, fields = bodies.validator(path), bodies.fields(path)
        refused = 0
        for field in fields:
            for value in ODD:
                whole = BODY[path] | {field: value}
                if not validator.is_valid(whole):
                    refused += 1
                    answer = await server.client.post(path, json=whole)
                    assert 400 <= answer.status_code < 500, (field, value, answer.text)
        assert refused > len(fields)
