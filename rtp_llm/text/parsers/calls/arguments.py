# SPDX-License-Identifier: Apache-2.0
"""A call's arguments, read one by one as text and sent as a JSON object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rtp_llm.text.parsers.answer import Answer
from rtp_llm.text.parsers.calls.typed_values import STRING, json_of, types_of
from rtp_llm.text.parsers.deltas import ToolArguments
from rtp_llm.text.parsers.source import Ended, Markers, Steps


class Arguments:
    """The arguments of the call that began last.

    A string is sent as it comes, every other value once it has ended.
    """

    def __init__(self, answer: Answer, tool: str) -> None:
        self._answer = answer
        self._schema: Mapping[str, Any] = {}
        if tool in answer.tools:
            self._schema = answer.tools[tool].parameters
        self._before = "{"

    def types(self, key: str) -> frozenset[str]:
        """JSON types that the tool's schema allows an argument."""
        properties = self._schema.get("properties")
        schema = properties.get(key) if isinstance(properties, Mapping) else None
        return types_of(schema, self._schema)

    def read(self, key: str, types: frozenset[str], end: Markers, *, in_lines: bool) -> Steps[None]:
        """Read a value and the marker after it.

        Raises Ended if the answer ends first; what was read until then has been sent.
        ``in_lines``: newlines around the value, if it begins with one, are not part of it.
        """
        in_lines = in_lines and (yield from self._answer.source.literal("\n"))
        if types == STRING:
            yield from self._string(key, end, in_lines)
            return
        chunks: list[str] = []
        try:
            yield from self._answer.source.until(end, chunks.append)
        except Ended:
            yield self.value(key, "".join(chunks))
            raise
        text = "".join(chunks)
        yield self.value(key, json_of(text.removesuffix("\n") if in_lines else text, types))

    def close(self) -> ToolArguments:
        """Close the JSON object after the last argument."""
        return self._answer.arguments("{}" if self._before == "{" else "}")

    def _string(self, key: str, end: Markers, in_lines: bool) -> Steps[None]:
        yield self.value(key, '"')
        newline = ""

        def send(chunk: str) -> ToolArguments:
            nonlocal newline
            text = newline + chunk
            newline = "\n" if in_lines and text.endswith("\n") else ""
            return self._answer.arguments(escaped(text.removesuffix(newline)))

        yield from self._answer.source.until(end, send)
        yield self._answer.arguments('"')

    def value(self, key: str, text: str) -> ToolArguments:
        """An argument with this JSON as its value."""
        before, self._before = self._before, ", "
        return self._answer.arguments(f"{before}{json.dumps(key, ensure_ascii=False)}: {text}")


def escaped(text: str) -> str:
    """Escape `text` for use between the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
