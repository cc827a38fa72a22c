# SPDX-License-Identifier: Apache-2.0
"""Values of keywords, checked; equality of JSON values."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from rtp_llm.text.grammar.errors import GrammarError


def kind_of(value: Any) -> str:
    """JSON's type of a value, without `integer`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def canonical(value: Any) -> str:
    """Equal for equal JSON values: 1 and 1.0 are, true and 1 are not."""
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return value


def decimal(number: float) -> Decimal:
    """The number as it is written in the schema."""
    return Decimal(repr(number))


def number_of(schema: dict[str, Any], keyword: str, pointer: str) -> Decimal:
    """Return the value of a keyword that takes a number. Raises GrammarError for any other."""
    value = schema[keyword]
    if kind_of_number(value):
        return decimal(value)
    raise GrammarError(f"{keyword} at {pointer} is not a number", keyword)


def kind_of_number(value: Any) -> bool:
    """Whether `value` is a number; booleans are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def count_of(schema: dict[str, Any], keyword: str, pointer: str) -> int:
    """Return the value of a keyword that counts. Raises GrammarError for any but integers >= 0."""
    value = schema[keyword]
    if kind_of_number(value) and value >= 0 and value == int(value):
        return int(value)
    raise GrammarError(f"{keyword} at {pointer} is not a count", keyword)


def list_of(schema: dict[str, Any], keyword: str, pointer: str) -> list[Any]:
    """Return the value of a keyword that takes a list. Raises GrammarError for any other."""
    value = schema[keyword]
    if isinstance(value, list):
        return value
    raise GrammarError(f"{keyword} at {pointer} is not a list", keyword)


def names_of(schema: dict[str, Any], keyword: str, pointer: str) -> list[str]:
    """Return the value of a keyword that takes a list of strings. Raises GrammarError."""
    names = list_of(schema, keyword, pointer)
    if all(isinstance(name, str) for name in names):
        return names
    raise GrammarError(f"{keyword} at {pointer} is not a list of strings", keyword)


def map_of(schema: dict[str, Any], keyword: str, pointer: str) -> dict[str, Any]:
    """Return the value of a keyword that takes an object; {} by default. Raises GrammarError."""
    value = schema.get(keyword, {})
    if isinstance(value, dict):
        return value
    raise GrammarError(f"{keyword} at {pointer} is not an object", keyword)


def text_of(schema: dict[str, Any], keyword: str, pointer: str) -> str:
    """Return the value of a keyword that takes a string. Raises GrammarError for any other."""
    value = schema[keyword]
    if isinstance(value, str):
        return value
    raise GrammarError(f"{keyword} at {pointer} is not a string", keyword)
