# SPDX-License-Identifier: Apache-2.0
"""Reads the tools of a request and its tool choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from rtp_llm.server.turn.function_tools import check_parameters
from rtp_llm.server.turn.parse import convert_at
from rtp_llm.server.types.errors import bad_request
from rtp_llm.text.conversation import Tool, ToolChoice


class _Function(msgspec.Struct, kw_only=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _Namespace(msgspec.Struct, kw_only=True):
    name: str
    tools: list[dict[str, Any]]


class _Choice(msgspec.Struct, kw_only=True):
    type: str
    name: str | None = None
    namespace: str | None = None
    mode: str = "auto"
    tools: list[dict[str, Any]] | None = None


@dataclass
class Tools:
    """`functions`: what the model may call; a function in a namespace is named NAMESPACE.NAME.

    `namespaces`: (namespace, name) by that full name; `skipped`: types of tools that are unknown or
    run at OpenAI.
    """

    functions: list[Tool] = field(default_factory=list)
    namespaces: dict[str, tuple[str, str]] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)

    def read(self, given: Sequence[dict[str, Any]], place: str = "tools", space: str = "") -> None:
        """Read the tools in the field `place`; raises ApiError 400 naming the invalid tool."""
        for at, tool in enumerate(given):
            where, kind = f"{place}[{at}]", tool.get("type")
            if kind == "function":
                function: _Function = convert_at(tool, _Function, where)
                check_parameters(function.parameters, f"{where}.parameters")
                self._add(function, space)
            elif kind == "namespace" and not space:
                nested: _Namespace = convert_at(tool, _Namespace, where)
                self.read(nested.tools, f"{where}.tools", nested.name)
            elif isinstance(kind, str):
                self.skipped.append(f"tools.{kind}")
            else:
                raise bad_request(
                    f"{where}.type is required.", f"{where}.type", "missing_required_parameter"
                )

    def _add(self, function: _Function, space: str) -> None:
        name = f"{space}.{function.name}" if space else function.name
        if space:
            self.namespaces[name] = (space, function.name)
        self.functions.append(
            Tool(
                name,
                function.description or "",
                function.parameters or {},
                strict=bool(function.strict),
            )
        )

    def choice(self, given: str | dict[str, Any] | None, parallel: bool) -> ToolChoice:
        """Read `tool_choice`; raises ApiError 400."""
        if given is None or given == "auto":
            return ToolChoice("auto", parallel=parallel)
        if given == "none":
            return ToolChoice("none", parallel=parallel)
        if given == "required":
            return ToolChoice("required", parallel=parallel)
        if isinstance(given, str):
            raise _invalid(f"{given!r} is none of none, auto, required")
        choice: _Choice = convert_at(given, _Choice, "tool_choice")
        if choice.type == "function":
            return ToolChoice("required", (self._declared(choice),), parallel)
        if choice.type != "allowed_tools":
            raise _invalid(f"tools of type {choice.type!r} are not run here")
        if choice.mode not in ("auto", "required"):
            raise _invalid(f"mode {choice.mode!r} is neither auto nor required")
        named = [
            self._declared(convert_at(tool, _Choice, f"tool_choice.tools[{at}]"))
            for at, tool in enumerate(choice.tools or ())
            if tool.get("type") == "function"
        ]
        mode: Literal["auto", "required"] = "auto" if choice.mode == "auto" else "required"
        return ToolChoice(mode, tuple(named), parallel)

    def _declared(self, choice: _Choice) -> str:
        name = f"{choice.namespace}.{choice.name}" if choice.namespace else choice.name or ""
        if all(name != tool.name for tool in self.functions):
            raise _invalid(f"the function {name!r} is not among the tools")
        return name


def _invalid(what: str) -> Exception:
    return bad_request(f"tool_choice: {what}.", "tool_choice", "invalid_value")
