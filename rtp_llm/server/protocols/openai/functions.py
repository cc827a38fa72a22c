# SPDX-License-Identifier: Apache-2.0
"""OpenAI's deprecated `functions`: converted to tools, with one call at a time."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rtp_llm.server.turn.function_tools import declared_functions, declared_tools, tool_choice
from rtp_llm.server.turn.parse import convert_at, is_harmless
from rtp_llm.server.types import openai_bodies as protocol
from rtp_llm.server.types.errors import bad_request
from rtp_llm.text.conversation import Tool, ToolChoice


def declared(request: protocol.ChatRequest | protocol.TokenizeRequest) -> tuple[Tool, ...]:
    """The declared tools, in either form; raises ApiError 400 for both forms or duplicate names."""
    if not request.functions:
        return declared_tools(request.tools)
    if request.tools:
        text = "functions and tools both declare what may be called; send one of them."
        raise bad_request(text, "functions", "invalid_value")
    return declared_functions(request.functions, "functions", "")


def choice(request: protocol.ChatRequest) -> ToolChoice:
    """Which tools may or must be called; raises ApiError 400 for an undeclared one."""
    requested = request.function_call
    if isinstance(requested, protocol.NamedFunction):
        names = [each.name for each in request.functions or ()]
        if requested.name not in names:
            text = f"function_call: no function is called {requested.name!r}."
            raise bad_request(text, "function_call", "invalid_value")
    if not request.functions:
        return tool_choice(request.tool_choice, request.parallel_tool_calls)
    if request.tool_choice is not None:
        text = "tool_choice: only applies to tools; with functions, send function_call."
        raise bad_request(text, "tool_choice", "invalid_value")
    if isinstance(requested, protocol.NamedFunction):
        return ToolChoice("required", (requested.name,), parallel=False)
    return ToolChoice(requested or "auto", None, parallel=False)


def with_tool_calls(messages: Sequence[protocol.Message]) -> list[protocol.Message]:
    """Convert function calls and results to tool calls, with ids of nine letters and digits.

    A result belongs to the preceding call. Raises ApiError 400.
    """
    found, call_id = [], None
    for at, message in enumerate(messages):
        place = f"messages[{at}]"
        if message.role == "function":
            if not message.name:
                raise bad_request(
                    f"{place}.name is required.", f"{place}.name", "missing_required_parameter"
                )
            message = msgspec.structs.replace(message, role="tool", tool_call_id=call_id)
        # Not "auto" and "none", which are of the request's field of this name.
        if not is_harmless("messages.function_call", message.function_call):
            place += ".function_call"
            if message.role != "assistant":
                text = f"{place}: only the assistant calls functions."
                raise bad_request(text, place, "invalid_value")
            function = convert_at(message.function_call, protocol.CalledFunction, place)
            call_id = f"call{at:05d}"
            calls = [protocol.MessageToolCall(id=call_id, function=function)]
            message = msgspec.structs.replace(
                message, tool_calls=[*(message.tool_calls or ()), *calls]
            )
        found.append(message)
    return found
