# SPDX-License-Identifier: Apache-2.0
"""Tools of a request, and which of them may be called."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rtp_llm.server.anthropic import protocol
from rtp_llm.server.errors import bad_request
from rtp_llm.server.prepare.openai_tools import check_parameters
from rtp_llm.text.conversation import Tool, ToolChoice


def usable_tools(
    given: Sequence[protocol.Tool], referenced: Collection[str]
) -> tuple[list[Tool], list[str]]:
    """What the model may call, and types of tools that run on Anthropic's side, which are skipped.

    `referenced`: of the tools that are loaded later those that are. Raises ApiError 400.
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
    """What `tool_choice` says; raises ApiError 400 for a tool that is not there."""
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
