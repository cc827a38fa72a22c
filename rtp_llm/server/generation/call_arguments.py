# SPDX-License-Identifier: Apache-2.0
"""The arguments of a call as an object."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter, ValidationError


def tool_input(arguments: str) -> dict[str, Any]:
    """The object of a call's arguments; if they were truncated, the part that can be parsed.

    Clients parse the pieces of an interrupted stream in the same way.
    """
    try:
        return _OBJECT.validate_json(arguments, experimental_allow_partial="on")
    except ValidationError:
        return {}


_OBJECT = TypeAdapter(dict[str, Any])
