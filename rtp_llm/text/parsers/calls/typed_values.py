# SPDX-License-Identifier: Apache-2.0
"""JSON values of arguments that a model writes as plain text, by what their schema allows."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Mapping
from typing import Any

STRING = frozenset({"string"})
NOT_STRINGS = frozenset({"null", "boolean", "integer", "number", "array", "object"})
ANY = NOT_STRINGS | STRING
_REFERENCES = 16  # followed at most; a schema may refer to itself
_KINDS: dict[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}


def types_of(schema: object, root: Mapping[str, Any], depth: int = _REFERENCES) -> frozenset[str]:
    """Names of the JSON types that a schema allows; all where it does not say.

    ``root``: the schema that references look into.
    """
    if not isinstance(schema, Mapping) or depth == 0:
        return ANY
    if isinstance(schema.get("$ref"), str):
        return types_of(referenced(schema["$ref"], root), root, depth - 1)
    allowed = _of_keyword_type(schema)
    if isinstance(schema.get("enum"), list):
        allowed &= frozenset(_KINDS.get(type(value), "") for value in schema["enum"])
    if "const" in schema:
        allowed &= {_KINDS.get(type(schema["const"]), "")}
    for keyword in ("anyOf", "oneOf"):
        if isinstance(schema.get(keyword), list):
            options = (types_of(option, root, depth - 1) for option in schema[keyword])
            allowed &= frozenset().union(*options)
    for part in schema["allOf"] if isinstance(schema.get("allOf"), list) else ():
        allowed &= types_of(part, root, depth - 1)
    return allowed or ANY


def referenced(reference: str, root: Mapping[str, Any]) -> object:
    """Resolve a reference such as `#/a/b`; None if it leads nowhere."""
    found: object = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        part = part.replace("~1", "/").replace("~0", "~")
        found = found if part == "" else found.get(part) if isinstance(found, Mapping) else None
    return found


def child_schema(
    schema: object, root: Mapping[str, Any], at: str | int, depth: int = _REFERENCES
) -> object:
    """The schema of a member of an object, by its key, or of an item, by its index; None: none.

    The first one that declares it is taken, of the schema itself and its alternatives.
    """
    if not isinstance(schema, Mapping) or depth == 0:
        return None
    if isinstance(schema.get("$ref"), str):
        return child_schema(referenced(schema["$ref"], root), root, at, depth - 1)
    if isinstance(at, str):
        properties = schema.get("properties")
        found = properties.get(at) if isinstance(properties, Mapping) else None
        found = schema.get("additionalProperties") if found is None else found
    else:
        first = schema.get("prefixItems")
        first = first if isinstance(first, list) else []
        found = first[at] if at < len(first) else schema.get("items")
    if isinstance(found, Mapping):
        return found
    for keyword in ("anyOf", "oneOf", "allOf"):
        for option in schema[keyword] if isinstance(schema.get(keyword), list) else ():
            if (found := child_schema(option, root, at, depth - 1)) is not None:
                return found
    return None


def json_of(text: str, types: frozenset[str]) -> str:
    """The JSON text of a value written as `text`, the first of `types` that it can be.

    JSON stays as it is; what Python writes is translated; everything else is a string.
    """
    if types == STRING:
        return json.dumps(text, ensure_ascii=False)
    bare = text.strip()
    if _kind(_parsed(bare)) in types:
        return bare
    for spelled in (_literal(bare, types), _number(bare, types), _python(bare, types)):
        if spelled is not None:
            return spelled
    return json.dumps(text, ensure_ascii=False)


_NOTHING = object()


def _of_keyword_type(schema: Mapping[str, Any]) -> frozenset[str]:
    named = schema.get("type")
    names = [named] if isinstance(named, str) else named if isinstance(named, list) else None
    if names is None:
        return ANY
    allowed = frozenset(name for name in names if isinstance(name, str))
    allowed |= {"integer"} if "number" in allowed else set()
    return allowed | {"null"} if schema.get("nullable") is True else allowed


def _parsed(text: str) -> object:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return _NOTHING


def _refuse(constant: str) -> object:
    raise ValueError(constant)  # NaN and Infinity are not JSON


def _kind(value: object) -> str | None:
    if isinstance(value, float) and value.is_integer():
        return "integer"
    return _KINDS.get(type(value))


def _literal(text: str, types: frozenset[str]) -> str | None:
    """Words in any case, as Python and people spell them."""
    word = text.lower()
    if "boolean" in types and word in ("true", "false"):
        return word
    return "null" if "null" in types and word in ("null", "none") else None


def _number(text: str, types: frozenset[str]) -> str | None:
    if "integer" in types and re.fullmatch(r"[+-]?[0-9]{1,400}", text):
        return str(int(text))
    if "number" in types and re.fullmatch(r"[+-]?[0-9]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?", text):
        try:
            value = float(text)
        except ValueError:
            return None
        return repr(value) if math.isfinite(value) else None
    return None


def _python(text: str, types: frozenset[str]) -> str | None:
    """An array or an object that is spelled as Python's."""
    if not text.startswith(("[", "{", "(")):
        return None
    try:
        value = ast.literal_eval(text)
        value = list(value) if isinstance(value, tuple) else value
        if _kind(value) not in types:
            return None
        spelled = json.dumps(value, ensure_ascii=False, allow_nan=False)
        spelled.encode()
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
    return spelled
