# SPDX-License-Identifier: Apache-2.0
"""LangChain's chat models: a tool call, streamed, and its result; answers of a schema; vectors."""

from __future__ import annotations

from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

from rtp_llm.testing.clients import turn as common

ADD = tool(common.calculator)
FIXED: dict[str, Any] = {
    "model": common.MODEL,
    "api_key": common.KEY,
    "max_retries": 0,
    "temperature": 0,
    "max_tokens": common.LENGTH,
}


def turn(model: Any, methods: list[str]) -> dict[str, Any]:
    bound = model.bind_tools([ADD])
    said: list[Any] = [HumanMessage(common.QUESTION)]
    first, *others = bound.stream(said)
    call = sum(others, first)
    said += [call, *(ADD.invoke(each) for each in call.tool_calls)]
    forms = {
        method: model.with_structured_output(common.Sum, method=method).invoke(common.IN_JSON)
        for method in methods
    }
    return {
        "calls": [[each["name"], each["args"]] for each in call.tool_calls],
        "answer": bound.invoke(said).text,
        "forms": {method: form.model_dump() for method, form in forms.items()},
    }


def vectors(url: str) -> list[list[float]]:
    # Otherwise it tokenises with OpenAI's tokenizer, which it downloads.
    embeddings = OpenAIEmbeddings(
        model=common.MODEL, base_url=url, api_key=common.KEY, check_embedding_ctx_length=False
    )
    found: list[list[float]] = embeddings.embed_documents(common.TEXTS)
    return [*found, embeddings.embed_query(common.TEXTS[0])]


def turns(url: str) -> dict[str, Any]:
    chat, anthropic = f"{url}/v1", ["json_schema", "function_calling"]
    methods = [*anthropic, "json_mode"]
    return {
        "chat": turn(ChatOpenAI(base_url=chat, **FIXED), methods),
        "responses": turn(ChatOpenAI(base_url=chat, use_responses_api=True, **FIXED), methods),
        "messages": turn(ChatAnthropic(base_url=url, **FIXED), anthropic),
        "vectors": vectors(chat),
    }
