# SPDX-License-Identifier: Apache-2.0
"""Gemma 4: `call:NAME{key:value,...}` with its own quotes around strings, and no escapes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rtp_llm.text.parsers.answer import MESSAGE_ENDS, Answer, clean_name
from rtp_llm.text.parsers.calls.arguments import escaped
from rtp_llm.text.parsers.calls.typed_values import child_schema, json_of, types_of
from rtp_llm.text.parsers.source import Malformed, Markers, Steps

OPEN, CLOSE, QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
_DEPTH = 64


@dataclass(frozen=True)
class GemmaCalls:
    """`<|tool_call>call:f{a:<|"|>text<|"|>,b:1,c:[true,{d:null}]}<tool_call|>`, for each call.

    Strings are sent as they come, other scalars once they have ended.
    """

    markers: tuple[str, ...] = (OPEN, CLOSE, QUOTE)

    def read(self, answer: Answer) -> Steps[None]:
        yield from answer.calls(Markers.of(OPEN, *MESSAGE_ENDS), self._call)

    def _call(self, answer: Answer) -> Steps[None]:
        source = answer.source
        yield from source.spaces()
        yield from source.expect("call:")
        name, end = yield from source.text_before(Markers.of("{", "<", "\n"))
        if end != "{":
            raise Malformed
        name = clean_name(name)
        yield answer.begin(name)
        schema = answer.tools[name].parameters if name in answer.tools else {}
        yield from _Values(answer, schema).members(schema, 0)
        yield from source.spaces()
        yield from source.closing(CLOSE)
        answer.end_call()


class _Values:
    """The values of one call; `root`: the schema that references look into."""

    def __init__(self, answer: Answer, root: Mapping[str, Any]) -> None:
        self._answer = answer
        self._root = root

    def members(self, schema: object, depth: int) -> Steps[None]:
        """Read `key:value,...}`, with its brace read already."""
        source = self._answer.source
        before = "{"
        yield from source.spaces()
        more = not (yield from source.literal("}"))
        while more:
            key = yield from self._key()
            name = json.dumps(key, ensure_ascii=False)
            yield self._answer.arguments(f"{before}{name}: ")
            before = ", "
            yield from self._value(child_schema(schema, self._root, key), depth + 1)
            yield from source.spaces()
            more = (yield from source.expect(",", "}")) == ","
            yield from source.spaces()
        yield self._answer.arguments("{}" if before == "{" else "}")

    def _key(self) -> Steps[str]:
        source = self._answer.source
        if (yield from source.literal(QUOTE)):
            key, _ = yield from source.text_before(Markers.of(QUOTE))
            yield from source.spaces()
            yield from source.expect(":")
            return key
        key, end = yield from source.text_before(Markers.of(":", "{", "}", ",", "<", "\n"))
        if end != ":" or not key.strip():
            raise Malformed
        return key.strip()

    def _value(self, schema: object, depth: int) -> Steps[None]:
        if depth > _DEPTH:
            raise Malformed
        source = self._answer.source
        yield from source.spaces()
        if (yield from source.literal(QUOTE)):
            yield self._answer.arguments('"')
            yield from source.until(
                Markers.of(QUOTE), lambda chunk: self._answer.arguments(escaped(chunk))
            )
            yield self._answer.arguments('"')
        elif (yield from source.literal("{")):
            yield from self.members(schema, depth)
        elif (yield from source.literal("[")):
            yield from self._items(schema, depth)
        else:
            text, _ = yield from source.text_before(Markers.of(",", "}", "]", "<"))
            source.unread_last()
            if not text.strip():
                raise Malformed
            yield self._answer.arguments(json_of(text.strip(), types_of(schema, self._root)))

    def _items(self, schema: object, depth: int) -> Steps[None]:
        source = self._answer.source
        yield self._answer.arguments("[")
        yield from source.spaces()
        more, index = not (yield from source.literal("]")), 0
        while more:
            yield from self._value(child_schema(schema, self._root, index), depth + 1)
            yield from source.spaces()
            more = (yield from source.expect(",", "]")) == ","
            index += 1
            if more:
                yield self._answer.arguments(", ")
        yield self._answer.arguments("]")
