# SPDX-License-Identifier: Apache-2.0
"""Fields of structural tags, checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rtp_llm.text.grammar.errors import GrammarError


def text_of(body: dict[str, Any], field: str, kind: str) -> str:
    """Return a required field that is a string. Raises GrammarError otherwise."""
    value = body.get(field)
    if isinstance(value, str):
        return value
    raise _error(kind, field, "a string")


def strings_of(
    body: dict[str, Any], field: str, kind: str, default: Sequence[str] | None = None
) -> list[str]:
    """Return a field that is a string or a list of at least one; `default` if it is missing."""
    value = body.get(field, default)
    values = [value] if isinstance(value, str) else value
    listed = isinstance(values, (list, tuple)) and all(isinstance(each, str) for each in values)
    if listed and (values or default is not None):
        return list(values or ())
    raise _error(kind, field, "a list of strings")


def format_of(body: dict[str, Any], field: str, kind: str) -> dict[str, Any]:
    """Return a required field that is a format, as an object. Raises GrammarError otherwise."""
    value = body.get(field)
    if isinstance(value, dict):
        return value
    raise _error(kind, field, "an object")


def formats_of(body: dict[str, Any], field: str, kind: str) -> list[dict[str, Any]]:
    """Return a required field that is a list of at least one format. Raises GrammarError."""
    values = body.get(field)
    if isinstance(values, list) and values and all(isinstance(each, dict) for each in values):
        return values
    raise _error(kind, field, "a list of objects")


def flag_of(body: dict[str, Any], field: str) -> bool:
    """Return a field that is a boolean, false if it is missing. Raises GrammarError otherwise."""
    value = body.get(field, False)
    if isinstance(value, bool):
        return value
    raise _error(str(body.get("type")), field, "a boolean")


def count_of(body: dict[str, Any], field: str, minimum: int) -> int:
    """Return a field that is an integer from `minimum` to 10000. Raises GrammarError."""
    value = body.get(field)
    if isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= 10_000:
        return value
    raise _error(str(body.get("type")), field, f"an integer from {minimum} to 10000")


def _error(kind: str, field: str, what: str) -> GrammarError:
    return GrammarError(f"structural_tag: {field} of {kind} must be {what}", field)
