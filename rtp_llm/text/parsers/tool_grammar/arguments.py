# SPDX-License-Identifier: Apache-2.0
"""Terms of Lark rules for arguments that are written one by one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rtp_llm.text.conversation import Tool
from rtp_llm.text.grammar.errors import GrammarError
from rtp_llm.text.grammar.json_schema import inline_json
from rtp_llm.text.parsers.calls.typed_values import STRING, types_of
from rtp_llm.text.parsers.tool_grammar.terms import Texts, quoted

# Keywords that are supported in a schema of arguments, and in the schema of a text argument.
_OF_OBJECTS = frozenset({"type", "properties", "required", "additionalProperties"})
_OF_STRINGS = frozenset({"type", "enum", "const", "anyOf", "oneOf", "nullable"})
_NOTES = frozenset(
    {"title", "description", "default", "examples", "$schema", "$id", "$comment", "$defs"}
    | {"definitions", "deprecated", "strict"}
)

IN_TAGS = re.compile(r"""[^\s<>"]+""")
_IN_PYTHON = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Argument:
    """One that a tool declares, with the schema of its value as one that stands by itself."""

    key: str
    schema: Any
    types: frozenset[str]
    required: bool
    strict: bool

    def json(self) -> str:
        """Return the rule term that matches the value as JSON."""
        return inline_json(self.schema, strict=self.strict)

    def texts(self) -> list[str] | None:
        """The only texts that the value may have, if it is one; None: any text.

        Raises GrammarError for a strict tool with texts that must satisfy more than that.
        """
        schema = self.schema if isinstance(self.schema, Mapping) else {}
        if self.strict:
            check_keywords(f"argument {self.key!r}", schema, frozenset())
        if "const" in schema:
            return [schema["const"]]
        return list(schema["enum"]) if isinstance(schema.get("enum"), list) else None


def arguments_of(tool: Tool, names: re.Pattern[str]) -> list[Argument]:
    """The declared arguments; `names`: what they may be called.

    Raises GrammarError for other names, and for what cannot be enforced of a strict tool.
    """
    root = tool.parameters
    for keyword in root if tool.strict else ():
        if keyword not in _OF_OBJECTS | _NOTES:
            raise _not_enforced(f"tool {tool.name!r}", keyword)
    properties = root.get("properties")
    required = root.get("required")
    declared = dict(properties) if isinstance(properties, Mapping) else {}
    needed = required if isinstance(required, list) else []
    for name in needed:
        declared.setdefault(str(name), {})
    for name in declared:
        if not names.fullmatch(name):
            raise GrammarError(f"tool {tool.name!r}: this model cannot name an argument {name!r}")
    shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
    return [
        Argument(
            key,
            {**schema, **shared}
            if isinstance(schema, Mapping) and "$ref" in str(schema)
            else schema,
            types_of(schema, root),
            key in needed,
            tool.strict,
        )
        for key, schema in declared.items()
    ]


def check_keywords(place: str, schema: Mapping[str, Any], more: frozenset[str]) -> None:
    """Raise GrammarError for what cannot be enforced of a value written as text, besides `more`."""
    for keyword in schema:
        if keyword not in _OF_STRINGS | _NOTES | more:
            raise _not_enforced(place, keyword)


def _not_enforced(place: str, keyword: str) -> GrammarError:
    return GrammarError(
        f"{place}: {keyword} cannot be enforced in the form that this model calls tools in",
        keyword,
    )


def separated(terms: Sequence[str], required: int, comma: str) -> str:
    """The terms in their order with commas between; the first `required` ones must be there."""
    if required:
        rest = " ".join(f"({comma} {term})?" for term in terms[required:])
        return f" {comma} ".join(terms[:required]) + " " + rest
    # The first that is there has no comma before it.
    options = (
        " ".join([term, *(f"({comma} {more})?" for more in terms[index + 1 :])])
        for index, term in enumerate(terms)
    )
    return f"({' | '.join(options)})?" if terms else ""


@dataclass(frozen=True)
class Tagged:
    """Arguments in tags: `head(key, is a text)`, the value, `end`, `after`.

    ``typed``: the head says whether the value is a text, else its schema decides how it is read.
    """

    before: str
    head: Callable[[str, bool], str]
    end: str
    after: str
    close: str
    typed: bool = False

    def __call__(self, tool: Tool, texts: Texts) -> str:
        terms = [texts(tool.name + self.before)]
        for argument in arguments_of(tool, IN_TAGS):
            term = f"{self._argument(argument, texts)} {texts(self.after)}"
            terms.append(term if argument.required else f"({term})?")
        return " ".join([*terms, texts(self.close)])

    def _argument(self, argument: Argument, texts: Texts) -> str:
        if "string" not in argument.types:
            return self._json(argument, texts)
        text = f"{texts(self.head(argument.key, True))} {self._text(argument, texts)}"
        if self.typed and argument.types != STRING:
            return f"({text} | {self._json(argument, texts)})"
        return text  # one that is JSON is read as what the schema allows

    def _json(self, argument: Argument, texts: Texts) -> str:
        return f"{texts(self.head(argument.key, False))} {argument.json()} {texts(self.end)}"

    def _text(self, argument: Argument, texts: Texts) -> str:
        only = argument.texts()
        if only is None:
            return "string"
        spelled = (value if isinstance(value, str) else quoted(value) for value in only)
        return f"({' | '.join(texts(text + self.end) for text in spelled)})"


def python_call(tool: Tool, texts: Texts) -> str:
    """`name(key=value, ...)`, the required arguments first."""
    arguments = sorted(arguments_of(tool, _IN_PYTHON), key=lambda argument: not argument.required)
    terms = [f"{texts(argument.key + '=')} {_python(argument)}" for argument in arguments]
    required = sum(argument.required for argument in arguments)
    inner = separated(terms, required, texts(", "))
    return f"{texts(tool.name + '(')} {inner} {texts(')')}"


def _python(argument: Argument) -> str:
    if argument.types == {"boolean"} and argument.schema == {"type": "boolean"}:
        return '("True" | "False")'
    return argument.json()
