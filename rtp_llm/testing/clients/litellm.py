# SPDX-License-Identifier: Apache-2.0
"""LiteLLM, by both protocols: a tool call, streamed, its result, an answer of a schema; vectors."""

from __future__ import annotations

import json
from typing import Any

import litellm

from rtp_llm.testing.clients import turn as common

litellm.telemetry = False
litellm.suppress_debug_info = True
EXPRESSION = {"type": "object", "properties": {"expression": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "calculator", "parameters": EXPRESSION}}


def turn(**fixed: Any) -> dict[str, Any]:
    fixed |= {"api_key": common.KEY, "temperature": 0, "max_tokens": common.LENGTH}
    said: list[Any] = [{"role": "user", "content": common.QUESTION}]
    chunks = litellm.completion(messages=said, tools=[TOOL], stream=True, **fixed)
    message = litellm.stream_chunk_builder(list(chunks)).choices[0].message
    calls = [(call.id, call.function) for call in message.tool_calls]
    said.append(message.model_dump())
    for id, function in calls:
        result = common.calculator(**json.loads(function.arguments))
        said.append({"role": "tool", "tool_call_id": id, "content": result})
    answer = litellm.completion(messages=said, tools=[TOOL], **fixed)
    asked = [{"role": "user", "content": common.IN_JSON}]
    form = litellm.completion(messages=asked, response_format=common.Sum, **fixed)
    return {
        "calls": [[function.name, json.loads(function.arguments)] for _, function in calls],
        "answer": answer.choices[0].message.content,
        "form": common.Sum.model_validate_json(form.choices[0].message.content).model_dump(),
    }


def vectors(url: str) -> list[list[float]]:
    fixed: dict[str, Any] = {"model": f"openai/{common.MODEL}", "api_base": url}
    answer = litellm.embedding(input=common.TEXTS, api_key=common.KEY, **fixed)
    return [each["embedding"] for each in answer.data]


def turns(url: str) -> dict[str, Any]:
    return {
        "chat": turn(model=f"openai/{common.MODEL}", api_base=f"{url}/v1"),
        "messages": turn(model=f"anthropic/{common.MODEL}", api_base=url),
        "vectors": vectors(f"{url}/v1"),
    }
