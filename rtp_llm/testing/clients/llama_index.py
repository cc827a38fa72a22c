# SPDX-License-Identifier: Apache-2.0
"""llama-index: a tool call, whole and streamed, and its result; structured predictions; vectors."""

from __future__ import annotations

from typing import Any

from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike

from rtp_llm.testing.clients import turn as common

ADD = FunctionTool.from_defaults(common.calculator)


def turn(llm: Any) -> dict[str, Any]:
    said = [ChatMessage(role="user", content=common.QUESTION)]
    whole = llm.get_tool_calls_from_response(llm.chat_with_tools([ADD], chat_history=said))
    *_, last = llm.stream_chat_with_tools([ADD], chat_history=said)
    (call,) = llm.get_tool_calls_from_response(last)
    result = common.calculator(**call.tool_kwargs)
    told = ChatMessage(
        role="tool", content=result, additional_kwargs={"tool_call_id": call.tool_id}
    )
    answer = llm.chat_with_tools([ADD], chat_history=[*said, last.message, told])
    asked = PromptTemplate("What is {first} + 30? Answer in JSON.")
    return {
        "calls": [[each.tool_name, each.tool_kwargs] for each in (*whole, call)],
        "answer": answer.message.content,
        "form": llm.structured_predict(common.Sum, asked, first=12).model_dump(),
    }


def vectors(url: str) -> list[list[float]]:
    embedding = OpenAILikeEmbedding(
        model_name=common.MODEL, api_base=url, api_key=common.KEY, max_retries=0
    )
    found: list[list[float]] = embedding.get_text_embedding_batch(common.TEXTS)
    return [*found, embedding.get_query_embedding(common.TEXTS[0])]


def turns(url: str) -> dict[str, Any]:
    fixed: dict[str, Any] = {
        "model": common.MODEL,
        "api_base": f"{url}/v1",
        "api_key": common.KEY,
        "is_chat_model": True,
        "is_function_calling_model": True,
        "context_window": 1024,
        "max_tokens": common.LENGTH,
        "max_retries": 0,
        "temperature": 0,
    }
    return {
        "by tools": turn(OpenAILike(**fixed)),
        "by a schema": turn(OpenAILike(should_use_structured_outputs=True, **fixed)),
        "vectors": vectors(f"{url}/v1"),
    }
