# SPDX-License-Identifier: Apache-2.0
"""Reads the tools of a request and its tool choice."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rtp_llm.server.protocols.anthropic import protocol
from rtp_llm.server.turn.function_tools import check_parameters
from rtp_llm.server.types.errors import bad_request
from rtp_llm.text.conversation import Tool, ToolChoice


def usable_tools(
    given: Sequence[protocol.Tool], referenced: Collection[str]
) -> tuple[list[Tool], list[str]]:
    """The tools that the model may call, and the types of skipped tools, which run at Anthropic.

    `referenced`: the deferred tools that have been loaded. Raises ApiError 400.
    """
    tools, skipped = [], []
    for at, tool in enumerate(given):
        if tool.type not in (None, "custom"):
            skipped.append(f"tools.{tool.type}")
        elif tool.input_schema is None:
            place = f"tools[{at}].input_schema"
            raise bad_request(f"{place} is required.", place, "missing_required_parameter")
        elif not tool.defer_loading or tool.name in referenced:
            check_parameters(tool.input_schema, f"tools[{at}].input_schema")
            strict = bool(tool.strict)
            tools.append(Tool(tool.name, tool.description or "", tool.input_schema, strict))
    return tools, skipped


def tool_choice(given: protocol.ToolChoice | None, tools: Sequence[Tool]) -> ToolChoice:
    """Read `tool_choice`; raises ApiError 400 for an undeclared tool."""
    if given is None:
        return ToolChoice()
    parallel = not given.disable_parallel_tool_use
    if given.type == "any":
        return ToolChoice("required", parallel=parallel)
    if given.type != "tool":
        return ToolChoice(given.type, parallel=parallel)
    if all(given.name != tool.name for tool in tools):
        raise bad_request(
            f"tool_choice: the tool {given.name!r} is not among the tools.",
            "tool_choice.name",
            "invalid_value",
        )
    return ToolChoice("required", (given.name or "",), parallel)
