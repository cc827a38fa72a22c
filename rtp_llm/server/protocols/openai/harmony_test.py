# SPDX-License-Identifier: Apache-2.0
"""Models with channels, such as gpt-oss: required, named and strict calls, along with schemas."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from rtp_llm.server.protocols.openai.tools_test import BOTH, NAMED, both
from rtp_llm.testing.model_folders import byte_level, with_bos, write_folder
from rtp_llm.testing.server.agents import ARGUMENTS, CONTEXT, TOOL
from rtp_llm.testing.server.fake_engine import FakeEngine, ready_message, say
from rtp_llm.testing.server.serving import Served, run, served
from rtp_llm.text.grammar.check import check_grammar
from rtp_llm.text.parsers.calls.harmony import CHANNEL, END, MESSAGE, START, Harmony
from rtp_llm.text.tokenizer import Tokenizer

TEMPLATE = """
{%- for tool in tools or [] %}{{ tool | tojson }}{% endfor %}
{%- for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}
{#- <|channel|>commentary to=functions.N <|constrain|>json<|message|>{}<|call|> -#}
"""
ANALYSIS = f"{CHANNEL}analysis{MESSAGE}"
SAID = (
    f"{ANALYSIS}I add.{END}{START}assistant{CHANNEL}commentary to=functions.add "
    f"<|constrain|>json{MESSAGE}{ARGUMENTS}<|call|>"
)
STRICT = {"type": "function", "function": {**TOOL["function"], "strict": True}}
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}


@cache
def folder(special: bool) -> Path:
    """`special`: the marks of channels are tokens."""
    tokenizer = with_bos(byte_level())
    if special:
        tokenizer.add_special_tokens(list(Harmony().markers))
    return write_folder(Path(mkdtemp()) / "channels", tokenizer, template=TEMPLATE)


@asynccontextmanager
async def channels(special: bool = True) -> AsyncIterator[Served]:
    tokenizer = Tokenizer.from_folder(folder(special))
    engine = FakeEngine(say(tokenizer, SAID))
    engine.next_ready = ready_message(CONTEXT)
    async with served(engine, tokenizer, model=str(folder(special))) as server:
        yield server


def ids(server: Served, text: str) -> tuple[int, ...]:
    return tuple(server.state.tokenizer.encode(text, False))


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [TOOL], "tool_choice": "required"},
        {"tools": BOTH, "tool_choice": NAMED},
        {"tools": [STRICT]},
        {"tools": [STRICT], "parallel_tool_calls": False},
        {"tools": [TOOL], "response_format": FORM},
        {"tools": [TOOL], "tool_choice": "required", "thinking_budget": 50},
    ],
)
@run
async def test_calls_are_enforced_behind_the_analysis(fields: dict[str, Any]) -> None:
    async with channels() as server:
        whole, streamed = await both(server, **fields)
        (call,) = whole["choices"][0]["message"]["tool_calls"]
        assert call["function"] == {"name": "add", "arguments": ARGUMENTS}
        assert streamed[0]["calls"][0]["arguments"] == ARGUMENTS
        assert whole["choices"][0]["message"]["reasoning"] == "I add."
        request = server.engine.requests[-1]
        assert request.grammar is not None and request.thinking is not None
        check_grammar(request.grammar, server.state.tokenizer)
        assert request.thinking.begin_ids == ids(server, ANALYSIS)
        assert request.thinking.end_ids == ids(server, END)
        assert request.thinking.budget == fields.get("thinking_budget")


@run
async def test_an_answer_without_tools_begins_with_its_channel() -> None:
    async with channels() as server:
        assert (await server.chat(response_format=FORM)).status_code == 200
        thinking = server.engine.requests[-1].thinking
        assert thinking is not None and not thinking.begin_ids
        assert thinking.end_ids == ids(server, f"{CHANNEL}final{MESSAGE}")
        await server.chat(tools=[TOOL])
        assert server.engine.requests[-1].grammar is None


@run
async def test_a_vocabulary_without_channels_is_refused() -> None:
    async with channels(special=False) as server:
        for fields in ({"tool_choice": "required"}, {"response_format": FORM}):
            answer = await server.chat(tools=[TOOL], **fields)
            assert answer.status_code == 400
            error = answer.json()["error"]
            assert error["param"] == "tools" and "no special token <|start|>" in error["message"]
        assert (await server.chat(tools=[TOOL])).status_code == 200
