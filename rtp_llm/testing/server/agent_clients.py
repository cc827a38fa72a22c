# SPDX-License-Identifier: Apache-2.0
"""A served model that thinks and calls tools, in the form of Qwen3, and the clients of agents."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import anthropic
import httpx2
import openai

from rtp_llm.testing.server.fake_engine import FakeEngine, ready_message
from rtp_llm.testing.server.serving import Served, demo_folder, fake_engine, served
from rtp_llm.text.tokenizer import Tokenizer

TEMPLATE = """\
{%- if tools %}<|im_start|>system
{{ messages[0].content if messages[0].role == "system" }}
# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Answer with <tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
{% elif messages[0].role == "system" %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == "tool" %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% elif message.role != "system" %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content or "" }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% endif %}{% endif %}"""
THOUGHT = "<think>\nI should add.\n</think>\n\n"
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}


@cache
def template_file() -> Path:
    path = Path(mkdtemp()) / "template.jinja"
    path.write_text(TEMPLATE)
    return path


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(demo_folder(), str(template_file()))


class Agents:
    """The clients of one server."""

    def __init__(self, server: Served) -> None:
        self.server = server
        self.engine: FakeEngine = server.engine
        url = "http://test"
        transport = httpx2.ASGITransport(server.app, raise_app_exceptions=False)
        http = httpx2.AsyncClient(transport=transport)
        self.openai = openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key="a key", http_client=http, max_retries=0
        )
        self.anthropic = anthropic.AsyncAnthropic(
            base_url=url, api_key="a key", http_client=http, max_retries=0
        )

    @property
    def prompt(self) -> str:
        """What the engine was asked last."""
        ids = self.engine.requests[-1].prompt_token_ids
        return self.server.state.tokenizer.decode(ids, skip_special_tokens=False)


@contextlib.asynccontextmanager
async def agents(*texts: str, context: int = 8192, **settings: Any) -> AsyncIterator[Agents]:
    """A server that says `texts`, one for each choice."""
    engine = fake_engine(*texts)
    engine.next_ready = ready_message(context)
    template = str(template_file())
    async with served(engine, tokenizer(), chat_template=template, **settings) as server:
        yield Agents(server)
