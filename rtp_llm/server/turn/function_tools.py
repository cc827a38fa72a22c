# SPDX-License-Identifier: Apache-2.0
"""Reads tools and tool choices in OpenAI's format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rtp_llm.server.types.bounds import MAX_TOOLS, check_count
from rtp_llm.server.types.errors import bad_request
from rtp_llm.server.types.openai_bodies import (
    FunctionDefinition,
    NamedFunction,
    ToolChoiceObject,
    ToolDefinition,
)
from rtp_llm.text.conversation import Tool, ToolChoice

Mode = Literal["none", "auto", "required"]


def declared_tools(tools: Sequence[ToolDefinition] | None) -> tuple[Tool, ...]:
    """The declared tools; raises ApiError 400 for duplicate names."""
    return declared_functions([each.function for each in tools or ()], "tools", ".function")


def declared_functions(
    functions: Sequence[FunctionDefinition], field: str, path: str
) -> tuple[Tool, ...]:
    """The declared functions; `path`: where the function is in an entry of the field."""
    check_count(field, len(functions), MAX_TOOLS, field)
    found: dict[str, Tool] = {}
    for index, function in enumerate(functions):
        if not function.name or function.name in found:
            place = f"{field}[{index}]{path}.name"
            what = "is there twice" if function.name else "must not be empty"
            raise bad_request(f"{place}: {function.name!r} {what}.", place, "invalid_value")
        check_parameters(function.parameters, f"{field}[{index}]{path}.parameters")
        found[function.name] = Tool(
            function.name,
            function.description or "",
            function.parameters or {},
            bool(function.strict),
        )
    return tuple(found.values())


def check_parameters(schema: Mapping[str, Any] | None, place: str) -> None:
    """Raise ApiError 400 if the schema of a function's arguments does not describe an object."""
    kinds = (schema or {}).get("type", "object")
    if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
        text = f"{place}: arguments are an object, and this schema has the type {kinds!r}."
        raise bad_request(text, place, "invalid_value")


def tool_choice(requested: Mode | ToolChoiceObject | None, parallel: bool | None) -> ToolChoice:
    """Which tools may or must be called; raises ApiError 400 for an incomplete object."""
    several = parallel is not False
    if not isinstance(requested, ToolChoiceObject):
        return ToolChoice(requested or "auto", None, several)
    rest = requested.function if requested.type == "function" else requested.allowed_tools
    if rest is None:
        place = f"tool_choice.{requested.type}"
        raise bad_request(f"{place} is required.", place, "missing_required_parameter")
    if isinstance(rest, NamedFunction):
        return ToolChoice("required", (rest.name,), several)
    names = tuple(each.function.name for each in rest.tools)
    if not names:
        raise bad_request("tool_choice: no tool may be called.", "tool_choice", "empty_array")
    return ToolChoice(rest.mode, names, several)
