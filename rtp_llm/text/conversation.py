# SPDX-License-Identifier: Apache-2.0
"""A conversation as the server keeps it, whichever protocol it came by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

# "system", "user", "assistant", "tool", or one that the model's template knows.
Role = str


@dataclass(frozen=True)
class ToolCall:
    """A call that the assistant made. ``arguments``: the JSON text of an object."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Message:
    """One message. ``content`` None: the assistant said nothing apart from its calls.

    ``reasoning`` and ``tool_calls`` are the assistant's; ``tool_call_id`` names the call that a
    message of the role "tool" answers, ``name`` its tool or the author.
    """

    role: Role
    content: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None


@dataclass(frozen=True)
class Tool:
    """A function that the model may call. ``parameters``: JSON Schema of the arguments, an object.

    ``strict``: arguments must obey the schema, not only try to.
    """

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    strict: bool = False


@dataclass(frozen=True)
class ToolChoice:
    """Whether tools are called. ``names``: those that may be, None: all that are declared.

    A tool that must be called is mode "required" with one name.
    """

    mode: Literal["none", "auto", "required"] = "auto"
    names: tuple[str, ...] | None = None
    parallel: bool = True
