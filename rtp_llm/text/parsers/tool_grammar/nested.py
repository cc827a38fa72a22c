# SPDX-License-Identifier: Apache-2.0
"""Terms of Lark rules for arguments in a syntax that is not JSON at any depth."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rtp_llm.text.conversation import Tool
from rtp_llm.text.grammar.errors import GrammarError
from rtp_llm.text.grammar.json_schema import inline_json
from rtp_llm.text.parsers.calls.gemma import QUOTE
from rtp_llm.text.parsers.calls.namespaced_xml import SPACE
from rtp_llm.text.parsers.calls.typed_values import ANY, child_schema, referenced, types_of
from rtp_llm.text.parsers.tool_grammar.arguments import (
    IN_TAGS,
    arguments_of,
    check_keywords,
    separated,
)
from rtp_llm.text.parsers.tool_grammar.terms import Texts

_DEPTH = 8
_NUMBERS = frozenset({"integer", "number"})


@dataclass(frozen=True)
class Member:
    """A member of an object: its key, the terms of its value, and whether it must be there."""

    key: str
    value: str
    required: bool


class Values(Protocol):
    """How a form writes values. Each method gives terms; `texts` writes literal text."""

    keys: re.Pattern[str]

    def text(self, texts: Texts) -> str:
        """Return a term for any string."""

    def exactly(self, text: str, texts: Texts) -> str:
        """Return a term for exactly the string `text`."""

    def scalar(self, term: str, texts: Texts) -> str:
        """A number, a boolean or null, which the term matches."""

    def members(self, members: Sequence[Member], texts: Texts) -> str:
        """An object of these members, in their order."""

    def items(self, item: str, texts: Texts) -> str:
        """An array of such items."""

    def anything(self, types: frozenset[str], texts: Texts) -> str:
        """A value of one of these types that nothing else is known of."""


@dataclass(frozen=True)
class NestedCall:
    """`before`, the tool's name, `head`, the arguments as an object, `close`."""

    values: Values
    head: str
    close: str

    def __call__(self, tool: Tool, texts: Texts) -> str:
        schemas = _Schemas(self.values, tool, texts)
        members = [
            Member(each.key, schemas.terms(each.schema, 0), each.required)
            for each in arguments_of(tool, self.values.keys)
        ]
        arguments = self.values.members(members, texts)
        return f"{texts(tool.name + self.head)} {arguments} {texts(self.close)}"


class _Schemas:
    """The terms of the schemas of one tool."""

    def __init__(self, values: Values, tool: Tool, texts: Texts) -> None:
        self._values = values
        self._tool = tool
        self._texts = texts

    def terms(self, schema: object, depth: int) -> str:
        values, texts, root = self._values, self._texts, self._tool.parameters
        types = types_of(schema, root)
        if not isinstance(schema, Mapping) or depth > _DEPTH:
            return values.anything(types, texts)
        if isinstance(schema.get("$ref"), str):
            return self.terms(referenced(schema["$ref"], root), depth + 1)
        if self._tool.strict and not types <= _NUMBERS:
            check_keywords(f"tool {self._tool.name!r}", schema, _NESTED)
        if "const" in schema or isinstance(schema.get("enum"), list):
            return self._one_of([schema["const"]] if "const" in schema else schema["enum"])
        for keyword in ("anyOf", "oneOf"):
            if isinstance(schema.get(keyword), list) and schema[keyword]:
                options = (self.terms(option, depth + 1) for option in schema[keyword])
                return f"({' | '.join(options)})"
        if types == ANY and not _NESTED_KEYS.intersection(schema):
            return values.anything(types, texts)
        kinds = types - {"integer"} if "number" in types else types
        return f"({' | '.join(self._of_type(kind, schema, depth) for kind in sorted(kinds))})"

    def _of_type(self, kind: str, schema: Mapping[str, Any], depth: int) -> str:
        values, texts = self._values, self._texts
        if kind == "string":
            return values.text(texts)
        if kind == "array":
            items = child_schema(schema, self._tool.parameters, 1 << 20)
            return values.items(self.terms(items, depth + 1), texts)
        if kind == "object":
            return self._object(schema, depth)
        if kind in _NUMBERS:
            own = {key: schema[key] for key in _OF_NUMBERS if key in schema}
            term = inline_json({**own, "type": kind}, strict=self._tool.strict)
            return values.scalar(term, texts)
        words = '("true" | "false")' if kind == "boolean" else '"null"'
        return values.scalar(words, texts)

    def _object(self, schema: Mapping[str, Any], depth: int) -> str:
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or not properties:
            return self._values.anything(frozenset({"object"}), self._texts)
        required = schema.get("required")
        needed = required if isinstance(required, list) else []
        for key in properties:
            if not self._values.keys.fullmatch(key):
                raise GrammarError(
                    f"tool {self._tool.name!r}: this model cannot name an argument {key!r}"
                )
        members = [
            Member(key, self.terms(value, depth + 1), key in needed)
            for key, value in properties.items()
        ]
        return self._values.members(members, self._texts)

    def _one_of(self, allowed: Sequence[object]) -> str:
        values, texts = self._values, self._texts
        options = []
        for each in allowed:
            if isinstance(each, (list, dict)):
                if self._tool.strict:
                    raise GrammarError(
                        f"tool {self._tool.name!r}: an object or array in enum or const cannot be "
                        "enforced in the form that this model calls tools in",
                        "enum",
                    )
                kind = frozenset({"array" if isinstance(each, list) else "object"})
                options.append(values.anything(kind, texts))
            elif isinstance(each, str):
                options.append(values.exactly(each, texts))
            else:
                options.append(values.scalar(texts(json.dumps(each)), texts))
        return f"({' | '.join(options)})"


_OF_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_NESTED_KEYS = frozenset({"type", "properties", "items", "prefixItems", "allOf"})
_NESTED = frozenset({"items", "properties", "required", "additionalProperties", *_OF_NUMBERS})


class GemmaValues:
    """Values as Gemma writes them: `{key:<|"|>text<|"|>,more:[1,true]}`."""

    keys = re.compile(r"[A-Za-z0-9_.$-]+")

    def text(self, texts: Texts) -> str:
        return f"{texts(QUOTE)} string"

    def exactly(self, text: str, texts: Texts) -> str:
        return texts(f"{QUOTE}{text}{QUOTE}")

    def scalar(self, term: str, texts: Texts) -> str:
        return term

    def members(self, members: Sequence[Member], texts: Texts) -> str:
        ordered = sorted(members, key=lambda member: not member.required)
        terms = [f"{texts(member.key + ':')} {member.value}" for member in ordered]
        required = sum(member.required for member in ordered)
        return f'"{{" {separated(terms, required, texts(","))} "}}"'

    def items(self, item: str, texts: Texts) -> str:
        return f'"[" ({item} ("," {item})*)? "]"'

    def anything(self, types: frozenset[str], texts: Texts) -> str:
        if types == {"object"}:
            return "any_object"
        return "any_array" if types == {"array"} else "any_value"

    def rules(self, texts: Texts) -> str:
        """Return the rules that the terms of `anything` refer to."""
        number = inline_json({"type": "number"})
        return (
            f'any_value: {self.text(texts)} | any_number | "true" | "false" | "null" '
            "| any_object | any_array\n"
            f"any_number: {number}\n"
            'any_object: "{" (any_member ("," any_member)*)? "}"\n'
            'any_member: ANY_KEY ":" any_value\n'
            'any_array: "[" (any_value ("," any_value)*)? "]"\n'
            "ANY_KEY: /[A-Za-z0-9_.$-]+/\n"
        )


class XmlValues:
    """`<key>value</key>`, each tag after the namespace's token, which ends every value."""

    keys = IN_TAGS

    def text(self, texts: Texts) -> str:
        return "string"

    def exactly(self, text: str, texts: Texts) -> str:
        return texts(f"{text}{SPACE}")

    def scalar(self, term: str, texts: Texts) -> str:
        return f"{term} {texts(SPACE)}"

    def members(self, members: Sequence[Member], texts: Texts) -> str:
        elements = (
            (element(member.key, member.value, texts), member.required) for member in members
        )
        terms = (term if required else f"({term})?" for term, required in elements)
        return f"{' '.join(terms)} {texts(SPACE)}"

    def items(self, item: str, texts: Texts) -> str:
        return f"({element('item', item, texts)})* {texts(SPACE)}"

    def anything(self, types: frozenset[str], texts: Texts) -> str:
        if "string" in types:
            return self.text(texts)
        return self.scalar(inline_json({"type": sorted(types)}), texts)


def element(tag: str, value: str, texts: Texts) -> str:
    """A value between its tags."""
    return f"{texts(f'{SPACE}<{tag}>')} {value} {texts(f'</{tag}>')}"
