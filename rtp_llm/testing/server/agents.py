# SPDX-License-Identifier: Apache-2.0
"""A model folder of an agent: tools in the form of hermes, thinking in that of Qwen3."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from rtp_llm.testing.model_folders import byte_level, with_bos, write_folder
from rtp_llm.testing.server.fake_engine import FakeEngine, ready_message, say
from rtp_llm.testing.server.serving import Served, listening, served
from rtp_llm.text.tokenizer import Tokenizer

TEMPLATE = """
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Call them so: <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls %}
<tool_call>
{{ call.function | tojson }}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is true %}<think>
{% elif enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% endif %}{% endif %}"""
CONTEXT = 4096
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": [1, "x"]}}\n</tool_call>'
ARGUMENTS = '{"a": 2, "b": [1, "x"]}'
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "array"}},
            "required": ["a"],
        },
    },
}


@cache
def agent_folder() -> Path:
    return write_folder(Path(mkdtemp()) / "agent", with_bos(byte_level()), template=TEMPLATE)


@cache
def agent_tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(agent_folder())


def agent_engine(*texts: str) -> FakeEngine:
    """What it says has the marks of calls in it, as a model writes them."""
    engine = FakeEngine(say(agent_tokenizer(), *texts))
    engine.next_ready = ready_message(CONTEXT)
    return engine


@asynccontextmanager
async def served_agent(*texts: str, **settings: Any) -> AsyncIterator[Served]:
    """In process, as `served`."""
    settings = {"model": str(agent_folder()), **settings}
    async with served(agent_engine(*texts), agent_tokenizer(), **settings) as server:
        yield server


@contextmanager
def listening_agent(*texts: str, **settings: Any) -> Iterator[str]:
    """On a port, as `listening`."""
    settings = {"model": str(agent_folder()), **settings}
    with listening(agent_engine(*texts), tokenizer=agent_tokenizer(), **settings) as url:
        yield url
