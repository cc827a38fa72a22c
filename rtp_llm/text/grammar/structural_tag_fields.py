# SPDX-License-Identifier: Apache-2.0
"""Fields of structural tags, checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rtp_llm.text.grammar.errors import GrammarError


def text_of(body: dict[str, Any], field: str, kind: str) -> str:
    """A string."""
    value = body.get(field)
    if isinstance(value, str):
        return value
    raise _error(kind, field, "a string")


def strings_of(
    body: dict[str, Any], field: str, kind: str, default: Sequence[str] | None = None
) -> list[str]:
    """A list of strings, one of them at least, or a string; `default` where there is none."""
    value = body.get(field, default)
    values = [value] if isinstance(value, str) else value
    listed = isinstance(values, (list, tuple)) and all(isinstance(each, str) for each in values)
    if listed and (values or default is not None):
        return list(values or ())
    raise _error(kind, field, "a list of strings")


def format_of(body: dict[str, Any], field: str, kind: str) -> dict[str, Any]:
    """A format."""
    value = body.get(field)
    if isinstance(value, dict):
        return value
    raise _error(kind, field, "an object")


def formats_of(body: dict[str, Any], field: str, kind: str) -> list[dict[str, Any]]:
    """A list of formats, one of them at least."""
    values = body.get(field)
    if isinstance(values, list) and values and all(isinstance(each, dict) for each in values):
        return values
    raise _error(kind, field, "a list of objects")


def flag_of(body: dict[str, Any], field: str) -> bool:
    """A boolean, false by default."""
    value = body.get(field, False)
    if isinstance(value, bool):
        return value
    raise _error(str(body.get("type")), field, "a boolean")


def count_of(body: dict[str, Any], field: str, least: int) -> int:
    """An integer of at least `least`."""
    value = body.get(field)
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= 10_000:
        return value
    raise _error(str(body.get("type")), field, f"an integer from {least} to 10000")


def _error(kind: str, field: str, what: str) -> GrammarError:
    return GrammarError(f"structural_tag: {field} of {kind} must be {what}", field)
