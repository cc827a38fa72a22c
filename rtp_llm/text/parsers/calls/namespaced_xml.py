# SPDX-License-Identifier: Apache-2.0
"""MiniMax-M3: a tag for each value, nested, and one token before every tag."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rtp_llm.text.parsers.answer import MESSAGE_ENDS, Answer
from rtp_llm.text.parsers.calls.arguments import Arguments
from rtp_llm.text.parsers.calls.section import rest_of_section
from rtp_llm.text.parsers.calls.typed_values import STRING, child_schema, json_of, types_of
from rtp_llm.text.parsers.calls.xml_calls import word
from rtp_llm.text.parsers.source import Malformed, Markers, Source, Steps

SPACE = "]<]minimax[>["
"""The token of the namespace, which says that a tag follows."""
_OPEN, _CLOSE = f"{SPACE}<tool_call>", f"{SPACE}</tool_call>"
_INVOKE = f'{SPACE}<invoke name="'
_DEPTH = 64


@dataclass(frozen=True)
class NamespacedXml:
    """`<tool_call>`, calls `<invoke name="N">...</invoke>`, `</tool_call>`, each tag after SPACE.

    An argument is `<key>value</key>`, with tags for members and `<item>` for items inside.
    """

    markers: tuple[str, ...] = (_OPEN, _CLOSE, SPACE)

    def read(self, answer: Answer) -> Steps[None]:
        yield from answer.calls(Markers.of(_OPEN, *MESSAGE_ENDS), self._section)

    def _section(self, answer: Answer) -> Steps[None]:
        yield from answer.source.spaces()
        yield from answer.source.expect(_INVOKE)
        yield from rest_of_section(answer, _INVOKE, _CLOSE, self._call)

    def _call(self, answer: Answer) -> Steps[None]:
        source = answer.source
        name, _ = yield from word(source, '">')
        schema = answer.tools[name].parameters if name in answer.tools else {}
        arguments = Arguments(answer, name)
        yield from source.spaces()
        key = yield from _tag(source)
        yield answer.begin(name)
        while key != "/invoke":
            if key.startswith("/"):
                raise Malformed
            if arguments.types(key) == STRING:
                end = Markers.of(SPACE)
                yield from arguments.read(key, STRING, end, in_lines=False)
                yield from source.expect(f"</{key}>")
            else:
                child = child_schema(schema, schema, key)
                yield arguments.value(key, (yield from _value(source, key, child, schema, 0)))
            yield from source.spaces()
            key = yield from _tag(source)
        yield arguments.close()
        answer.end_call()


def _tag(source: Source) -> Steps[str]:
    """Read a tag; its name, after a slash if it closes."""
    yield from source.expect(SPACE)
    return (yield from _name(source))


def _name(source: Source) -> Steps[str]:
    yield from source.spaces()
    yield from source.expect("<")
    name, _ = yield from word(source, ">")
    return name


def _value(
    source: Source, tag: str, schema: object, root: Mapping[str, Any], depth: int
) -> Steps[str]:
    """Read a value and its closing tag; its JSON."""
    if depth > _DEPTH:
        raise Malformed
    types = types_of(schema, root)
    text, _ = yield from source.text_before(Markers.of(SPACE))
    child = yield from _name(source)
    if child == f"/{tag}":
        return _leaf(text, types)
    if text.strip():
        raise Malformed
    found: list[tuple[str, str]] = []
    is_array = "array" in types and (child == "item" or "object" not in types)
    while child != f"/{tag}":
        if child.startswith("/"):
            raise Malformed
        inner = child_schema(schema, root, len(found) if is_array else child)
        found.append((child, (yield from _value(source, child, inner, root, depth + 1))))
        yield from source.spaces()
        child = yield from _tag(source)
    if is_array:
        return f"[{', '.join(value for _, value in found)}]"
    return _object(found)


def _leaf(text: str, types: frozenset[str]) -> str:
    if not text.strip() and "string" not in types:
        empty = {"array": "[]", "object": "{}", "null": "null"}
        return next((json for kind, json in empty.items() if kind in types), '""')
    return json_of(text, types)


def _object(members: list[tuple[str, str]]) -> str:
    """An object; the values of one key that is there several times are an array."""
    values: dict[str, list[str]] = {}
    for key, value in members:
        values.setdefault(key, []).append(value)
    shown = (
        f"{json.dumps(key, ensure_ascii=False)}: "
        + (texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]")
        for key, texts in values.items()
    )
    return f"{{{', '.join(shown)}}}"
