# SPDX-License-Identifier: Apache-2.0
"""What an answer has to obey, under every name, reaches the engine as one grammar."""

from __future__ import annotations

import json
from typing import Any

import pydantic
import pytest
from openai import OpenAI

from rtp_llm.request.constraints import Grammar
from rtp_llm.testing.server.agents import TOOL, listening_agent, served_agent
from rtp_llm.testing.server.serving import run, served
from rtp_llm.text.grammar import (
    choice_grammar,
    ebnf_grammar,
    json_object_grammar,
    json_schema_grammar,
    regex_grammar,
    structural_tag_grammar,
)

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
}
TAG: dict[str, Any] = {
    "type": "structural_tag",
    "format": {"type": "tag", "begin": "<a>", "content": {"type": "regex", "pattern": "[0-9]"}},
}
TAG["format"]["end"] = "</a>"
GBNF = 'root ::= "yes" | "no"'
JSON, REGEX, CHOICE = json_schema_grammar(SCHEMA), regex_grammar("[0-9]+"), choice_grammar(["a"])
OBJECT, EBNF = json_object_grammar(), ebnf_grammar(GBNF)
NAMES: list[tuple[dict[str, Any], Grammar]] = [
    ({"response_format": {"type": "json_object"}}, OBJECT),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": SCHEMA},
            }
        },
        json_schema_grammar(SCHEMA, strict=False),
    ),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"schema": SCHEMA, "strict": True},
            }
        },
        JSON,
    ),
    ({"structured_outputs": {"json": SCHEMA}}, JSON),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, JSON),
    ({"structured_outputs": {"regex": "[0-9]+"}}, REGEX),
    ({"structured_outputs": {"choice": ["a"]}}, CHOICE),
    ({"structured_outputs": {"grammar": GBNF}}, EBNF),
    ({"structured_outputs": {"json_object": True}}, OBJECT),
    (
        {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
        json_schema_grammar(SCHEMA, any_whitespace=False),
    ),
    (
        {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " "}},
        json_schema_grammar(SCHEMA, whitespace_pattern=" "),
    ),
    (
        {"structured_outputs": {"json": SCHEMA, "disable_additional_properties": True}},
        json_schema_grammar({**SCHEMA, "additionalProperties": False}),
    ),
    ({"structured_outputs": {"structural_tag": TAG}}, structural_tag_grammar(TAG)),
    ({"structured_outputs": {"structural_tag": json.dumps(TAG)}}, structural_tag_grammar(TAG)),
    ({"structural_tag": TAG}, structural_tag_grammar(TAG)),
    ({"response_format": TAG}, structural_tag_grammar(TAG)),
    ({"guided_json": SCHEMA}, JSON),
    ({"guided_json": json.dumps(SCHEMA)}, JSON),
    ({"guided_regex": "[0-9]+"}, REGEX),
    ({"guided_choice": ["a"]}, CHOICE),
    ({"guided_grammar": GBNF}, EBNF),
    ({"json_schema": SCHEMA}, JSON),
    ({"json_schema": json.dumps(SCHEMA)}, JSON),
    ({"regex": "[0-9]+"}, REGEX),
    ({"ebnf": GBNF}, EBNF),
    ({"grammar": GBNF}, EBNF),
]


@pytest.mark.parametrize("case", range(len(NAMES)))
@run
async def test_every_name_of_a_constraint(case: int) -> None:
    fields, grammar = NAMES[case]
    async with served() as server:
        for ask in (server.chat, server.complete):
            answer = await ask(**fields)
            assert answer.status_code == 200, answer.text
            assert server.engine.requests[-1].grammar == grammar
            assert server.engine.requests[-1].thinking is None
        await server.complete(prompt=["a", "b"], n=2, **fields)
        assert {each.grammar for each in server.engine.requests[-2:]} == {grammar}


@run
async def test_what_asks_for_nothing() -> None:
    plain: dict[str, Any] = {name: None for fields, _ in NAMES for name in fields}
    plain |= {"response_format": {"type": "text"}, "grammar": "", "regex": ""}
    plain["structured_outputs"] = {"json_object": False}
    async with served() as server:
        for ask in (server.chat, server.complete):
            assert (await ask(**plain)).status_code == 200
            assert server.engine.requests[-1].grammar is None


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"guided_json": SCHEMA, "regex": "a"}, "regex", "guided_json and regex both"),
    (
        {"structured_outputs": {"regex": "a", "choice": ["a"]}},
        "structured_outputs.choice",
        "both say",
    ),
    ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema.schema"),
    ({"response_format": {"type": "yaml"}}, "response_format.type", "yaml"),
    ({"response_format": "json"}, "response_format", "expected object"),
    ({"guided_json": "{"}, "guided_json", "JSON"),
    ({"guided_json": "[" * 50_000}, "guided_json", "JSON"),
    ({"guided_json": 3}, "guided_json", "got int"),
    ({"guided_json": "3"}, "guided_json", "an object, true or false"),
    ({"guided_choice": []}, "guided_choice", "empty"),
    ({"guided_choice": [1]}, "guided_choice[0]", "expected str"),
    ({"regex": "("}, "regex", ""),
    ({"ebnf": "root ::= ["}, "ebnf", ""),
    ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag", ""),
    ({"structural_tag": {}}, "structural_tag", "format"),
    ({"guided_json": {"type": "nothing"}}, "guided_json", "type"),
    ({"guided_json": {"$ref": "http://example.com/x.json"}}, "guided_json", "$ref"),
    ({"guided_json": {"type": "array", "uniqueItems": True}}, "guided_json", "uniqueItems"),
    ({"structured_outputs": {"grammar": ""}}, "structured_outputs.grammar", "the grammar is empty"),
    ({"structured_outputs": {"regex": " "}}, "structured_outputs.regex", "the regex is empty"),
    ({"structured_outputs": {"json": ""}}, "structured_outputs.json", "json: the text is empty"),
    ({"guided_grammar": ""}, "guided_grammar", "the grammar is empty"),
    ({"guided_regex": ""}, "guided_regex", "the regex is empty"),
    (
        {"guided_json": {"properties": {"v": {"type": "integer", "minimum": 2**64}}}},
        "guided_json",
        "minimum at #/properties/v: 18446744073709551616",
    ),
]


@pytest.mark.parametrize("case", range(len(WRONG)))
@run
async def test_what_cannot_be_obeyed(case: int) -> None:
    fields, param, text = WRONG[case]
    async with served() as server:
        for ask in (server.chat, server.complete):
            for stream in (False, True):
                answer = await ask(**fields, stream=stream)
                assert answer.status_code == 400, answer.text
                error = answer.json()["error"]
                assert error["param"] == param and text in error["message"], error
                assert error["message"].count("json: ") <= 1, error
        assert not server.engine.requests


INT64 = {
    "type": "object",
    "properties": {"v": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}},
}


@run
async def test_bounds_of_64_bits_are_taken_everywhere() -> None:
    function = {"name": "f", "parameters": INT64}
    requested: list[dict[str, Any]] = [
        {"response_format": {"type": "json_schema", "json_schema": {"schema": INT64, **more}}}
        for more in ({"strict": True}, {"strict": False})
    ]
    requested += [
        {"tools": [{"type": "function", "function": {**function, "strict": strict}}]}
        | {"tool_choice": choice}
        for strict in (True, False)
        for choice in ("auto", "required")
    ]
    async with served_agent("x") as server:
        for fields in requested:
            answer = await server.chat(**fields)
            assert answer.status_code == 200, answer.text


@run
async def test_parameters_of_functions_are_of_an_object() -> None:
    array = {"type": "array", "items": {"type": "integer"}}
    async with served_agent("x") as server:
        for path, tool, place in (
            (
                "/v1/chat/completions",
                {"type": "function", "function": {"name": "f", "parameters": array}},
                "tools[0].function.parameters",
            ),
            (
                "/v1/responses",
                {"type": "function", "name": "f", "parameters": array},
                "tools[0].parameters",
            ),
            ("/v1/messages", {"name": "f", "input_schema": array}, "tools[0].input_schema"),
        ):
            messages = [{"role": "user", "content": "a"}]
            body = {"input": "a"} if "responses" in path else {"messages": messages}
            answer = await server.post(path, tools=[tool], max_tokens=9, model="demo", **body)
            assert answer.status_code == 400, answer.text
            assert place in answer.json()["error"]["message"]
        answer = await server.chat(functions=[{"name": "f", "parameters": array}])
        assert answer.json()["error"]["param"] == "functions[0].parameters"


@run
async def test_hostile_schemas() -> None:
    deep: dict[str, Any] = {"type": "integer"}
    for _ in range(60):
        deep = {"anyOf": [deep, deep["type"]] if "type" in deep else [deep]}
    text = '{"not":' * 900 + "{}" + "}" * 900
    wide = {"enum": [f"x{i}" for i in range(60_000)]}
    many = {"type": "string", "pattern": "(a{1,1000}){1,1000}"}
    async with served() as server:
        for refused in (text, wide):
            answer = await server.chat(guided_json=refused)
            assert answer.status_code == 400, answer.text[:300]
        for schema in (deep, many):  # what is taken of them is the library's choice
            assert (await server.chat(guided_json=schema)).status_code in (200, 400)
        assert (await server.chat(guided_json=SCHEMA)).status_code == 200


@run
async def test_the_grammar_begins_behind_the_thinking() -> None:
    async with served_agent('{"a": 1}') as server:
        for fields, begins in (
            ({}, True),
            ({"enable_thinking": True}, False),
            ({"chat_template_kwargs": {"enable_thinking": True}}, False),
        ):
            await server.chat(guided_json=SCHEMA, **fields)
            thinking = server.engine.requests[-1].thinking
            assert thinking is not None and thinking.budget is None
            assert bool(thinking.begin_ids) == begins and thinking.end_ids
        for off in ({"enable_thinking": False}, {"reasoning_effort": "none"}):
            await server.chat(guided_json=SCHEMA, **off)
            assert server.engine.requests[-1].thinking is None
            assert server.engine.requests[-1].grammar == JSON


@run
async def test_a_call_or_an_answer_of_a_form() -> None:
    async with served_agent('{"a": 1}') as server:
        answer = await server.chat(tools=[TOOL], guided_json=SCHEMA)
        assert answer.status_code == 200, answer.text
        grammar = server.engine.requests[-1].grammar
        assert grammar is not None and "<tool_call>" in grammar.text and "integer" in grammar.text
        answer = await server.chat(tools=[TOOL], tool_choice="none", guided_json=SCHEMA)
        assert server.engine.requests[-1].grammar == JSON


@pytest.mark.parametrize("case", range(len(NAMES)))
@run
async def test_every_constraint_beside_tools(case: int) -> None:
    """The two grammars together compile, whatever each is made of."""
    async with served_agent("x") as server:
        answer = await server.chat(tools=[TOOL], **NAMES[case][0])
        assert answer.status_code == 200, answer.text
        grammar = server.engine.requests[-1].grammar
        assert grammar is not None and "<tool_call>" in grammar.text


class Sum(pydantic.BaseModel):
    a: int


def test_the_official_client_parses_into_a_model() -> None:
    with listening_agent('{"a": 3}') as url:
        client = OpenAI(base_url=f"{url}/v1", api_key="none")
        parsed = client.chat.completions.parse(
            model="demo", messages=[{"role": "user", "content": "1 + 2"}], response_format=Sum
        )
        assert parsed.choices[0].message.parsed == Sum(a=3)
        with client.chat.completions.stream(
            model="demo", messages=[{"role": "user", "content": "1 + 2"}], response_format=Sum
        ) as stream:
            assert stream.get_final_completion().choices[0].message.parsed == Sum(a=3)
