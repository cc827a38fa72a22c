# SPDX-License-Identifier: Apache-2.0
"""A JSON schema with its references, as a table of subschemas."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from time import monotonic
from typing import Any, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin

from rtp_llm.text.grammar.errors import GrammarError
from rtp_llm.text.grammar.lark import MAX_BYTES

Schema = dict[str, Any] | bool
Scope = tuple[tuple[str, str], ...]
"""Of a $dynamicAnchor's name, the URI of the outermost resource on the way here that has it."""

MAX_DEPTH = 100
DEADLINE_SECONDS = 5.0
# Where subschemas stand: as the keyword's value, in a list, or by name.
ONE = frozenset(
    (
        "additionalItems",
        "additionalProperties",
        "contains",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    )
)
MANY = frozenset(("allOf", "anyOf", "items", "oneOf", "prefixItems"))
NAMED = frozenset(("$defs", "definitions", "dependentSchemas", "patternProperties", "properties"))


_ANNOTATIONS = frozenset(
    (
        "$comment",
        "default",
        "deprecated",
        "description",
        "examples",
        "readOnly",
        "title",
        "writeOnly",
    )
)


class Literal(NamedTuple):
    """A subschema by its number in the document, or what it does not hold for."""

    schema: int
    positive: bool = True

    def __invert__(self) -> Literal:
        return Literal(self.schema, not self.positive)


class _Place(NamedTuple):
    schema: dict[str, Any]
    pointer: str
    base: str


class Document:
    """The subschemas of one request, by the text of its schema: no two of them are one object.

    A subschema that is reached through several resources has a number for each meaning that its
    $dynamicRef may have. Raises GrammarError for anything that is not a JSON schema.
    """

    def __init__(self, text: str, *, strict: bool = True) -> None:
        self.strict = strict
        self._deadline = monotonic() + DEADLINE_SECONDS
        self.root: Schema = json.loads(text)
        self._schemas: list[Schema] = [True, False]
        self._scopes: list[Scope] = [(), ()]
        self._places: dict[int, _Place] = {}  # by identity
        self._numbers: dict[tuple[int, Scope], int] = {}
        self._resources: dict[str, dict[str, Any]] = {}
        self._anchors: dict[str, dict[str, Any]] = {}
        self._dynamic: dict[str, dict[str, dict[str, Any]]] = {}
        self._kept: list[dict[str, Any]] = []
        self._either: dict[frozenset[Literal], Literal] = {}
        if isinstance(self.root, dict):
            _check_dialect(self.root)
            self._resources[""] = self.root
            self._walk(self.root, "#", "")
            self._dynamic = _ambiguous(self._places.values())

    def check_time(self) -> None:
        """GrammarError when reading the schema takes too long."""
        if monotonic() > self._deadline:
            raise GrammarError(
                f"reading the schema takes longer than {DEADLINE_SECONDS:g} s; make it simpler"
            )

    def literal(self, schema: Any, pointer: str, parent: int | None = None) -> Literal:
        """The subschema `schema`, at `pointer` below the schema with number `parent`."""
        if isinstance(schema, Literal):  # in what was made here
            return schema
        return self._followed(self._literal(schema, pointer, parent).schema)

    def _literal(self, schema: Any, pointer: str, parent: int | None = None) -> Literal:
        if isinstance(schema, bool):
            return Literal(0 if schema else 1)
        if not isinstance(schema, dict):
            raise GrammarError(f"{pointer}: a schema is an object or a boolean, not this")
        if id(schema) not in self._places:  # in a place where no schema was expected
            self._walk(schema, pointer, "" if parent is None else self._place(parent).base)
        return self._numbered(schema, () if parent is None else self._scopes[parent])

    def _numbered(self, schema: dict[str, Any], scope: Scope) -> Literal:
        """The subschema, reached from `scope`."""
        scope = self._entered(scope, self._places[id(schema)].base)
        number = self._numbers.setdefault((id(schema), scope), len(self._schemas))
        if number == len(self._schemas):
            self._schemas.append(schema)
            self._scopes.append(scope)
        return Literal(number)

    def _entered(self, scope: Scope, uri: str) -> Scope:
        """The scope inside of the resource `uri`."""
        known = {name for name, _ in scope}
        more = [
            (name, uri)
            for name, resources in self._dynamic.items()
            if uri in resources and name not in known
        ]
        return tuple(sorted((*scope, *more))) if more else scope

    def _followed(self, number: int) -> Literal:
        """What a subschema that is nothing but a $ref leads to: it is met under one number."""
        seen = {number}
        while True:
            schema = self._schemas[number]
            if not isinstance(schema, dict) or schema.keys() - _ANNOTATIONS != {"$ref"}:
                break
            try:
                number = self._resolved(number, schema["$ref"], "$ref")[0].schema
            except GrammarError:  # where it is used, if it is
                break
            if number in seen:
                break
            seen.add(number)
        return Literal(number)

    def schema(self, number: int) -> Schema:
        """The subschema of this number."""
        return self._schemas[number]

    def pointer(self, number: int) -> str:
        """Where it stands, as a JSON pointer."""
        return self._place(number).pointer or "#"

    def _place(self, number: int) -> _Place:
        return self._places.get(id(self._schemas[number]), _Place({}, "", ""))

    def made(self, schema: dict[str, Any], of: Literal) -> Literal:
        """Some keywords of a subschema as one of its own."""
        self._kept.append(schema)  # it goes by its identity
        return self._literal(schema, self.pointer(of.schema), of.schema)

    def either(self, literals: Iterable[Literal], of: Literal) -> Literal:
        """The subschema that holds where one of `literals` does."""
        key = frozenset(literals)
        if len(key) == 1:
            return next(iter(key))
        if key not in self._either:
            self._either[key] = self.made({"anyOf": sorted(key)}, of)
        return self._either[key]

    def resolve(self, number: int, reference: Any, keyword: str) -> Literal:
        """Resolve a $ref of subschema `number`; GrammarError if it cannot be resolved."""
        return self._followed(self._resolved(number, reference, keyword)[0].schema)

    def resolve_dynamic(self, number: int, reference: Any) -> Literal:
        """Resolve a $dynamicRef of subschema `number` in the scope in which it was reached."""
        found, uri, fragment = self._resolved(number, reference, "$dynamicRef")
        resources = self._dynamic.get(fragment, {})
        if resources.get(uri) is not self._schemas[found.schema]:
            return found  # no $dynamicAnchor, or the only one
        scope = self._scopes[number]
        outermost = dict(scope).get(fragment)
        return found if outermost is None else self._numbered(resources[outermost], scope)

    def _resolved(self, number: int, reference: Any, keyword: str) -> tuple[Literal, str, str]:
        """The subschema, the URI of its resource and the fragment."""
        _, pointer, base = self._place(number)
        if not isinstance(reference, str):
            raise GrammarError(f"{keyword} at {pointer} is not a string", keyword)
        uri, fragment = urldefrag(_joined(base, reference))
        resource = self._resources.get(uri)
        if resource is None:
            raise GrammarError(
                f"{keyword} at {pointer}: {reference} is in another document, and none is loaded",
                keyword,
            )
        fragment = unquote(fragment)
        if not fragment or fragment.startswith("/"):
            what = f"{keyword} at {pointer}: {reference}"
            return self._at(resource, fragment, what, keyword, number), uri, fragment
        found = self._anchors.get(f"{uri}#{fragment}")
        if found is None:
            raise GrammarError(f"{keyword} at {pointer}: {reference} leads nowhere", keyword)
        return self._numbered(found, self._scopes[number]), uri, fragment

    def _at(
        self, resource: dict[str, Any], fragment: str, what: str, keyword: str, number: int
    ) -> Literal:
        target: Any = resource
        _, pointer, base = self._places[id(resource)]
        for part in fragment.split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(target, list) and part.isdecimal() and int(part) < len(target):
                target = target[int(part)]
            elif isinstance(target, dict) and part in target:
                target = target[part]
            else:
                raise GrammarError(f"{what} leads nowhere", keyword)
            base = self._places[id(target)].base if id(target) in self._places else base
        if isinstance(target, dict) and id(target) not in self._places:
            self._walk(target, pointer + fragment, base)
        return self._literal(target, pointer + fragment, number)

    def _walk(self, root: dict[str, Any], pointer: str, base: str) -> None:
        waiting = [(root, pointer, base)]
        while waiting:
            schema, pointer, base = waiting.pop()
            if id(schema) in self._places:
                continue
            base = self._identify(schema, base)
            self._places[id(schema)] = _Place(schema, pointer, base)
            waiting += [(each, f"{pointer}/{path}", base) for each, path in _subschemas(schema)]

    def _identify(self, schema: dict[str, Any], base: str) -> str:
        """Take note of $id and anchors; the base URI of what is inside."""
        name = schema.get("$id")
        if isinstance(name, str):
            base = urldefrag(_joined(base, name))[0]
            self._resources.setdefault(base, schema)
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(schema.get(keyword), str):
                self._anchors.setdefault(f"{base}#{schema[keyword]}", schema)
        return base


def _ambiguous(places: Iterable[_Place]) -> dict[str, dict[str, dict[str, Any]]]:
    """The schemas of each $dynamicAnchor that several resources have, by their URIs."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for schema, _, base in places:
        name = schema.get("$dynamicAnchor")
        if isinstance(name, str):
            found.setdefault(name, {}).setdefault(base, schema)
    return {name: resources for name, resources in found.items() if len(resources) > 1}


def _check_dialect(schema: dict[str, Any]) -> None:
    """Check $schema, since another metaschema may change the meaning of keywords."""
    dialect = schema.get("$schema", "")
    if not isinstance(dialect, str) or (dialect and "//json-schema.org/" not in dialect):
        raise GrammarError(f"$schema: {dialect!r} is none of json-schema.org", "$schema")


def _subschemas(schema: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """The schemas that are objects right below `schema`, with their path from it."""
    for keyword, value in schema.items():
        if keyword in ONE and isinstance(value, dict):
            yield value, keyword
        elif keyword in MANY and isinstance(value, list):
            for index, each in enumerate(value):
                if isinstance(each, dict):
                    yield each, f"{keyword}/{index}"
        elif (keyword in NAMED or keyword == "dependencies") and isinstance(value, dict):
            for name, each in value.items():
                if isinstance(each, dict):
                    yield each, f"{keyword}/{escaped(name)}"


def escaped(name: str) -> str:
    """A name as a part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def _joined(base: str, reference: str) -> str:
    try:
        return urljoin(base, reference) if not base.startswith("urn:") else _of_urn(base, reference)
    except ValueError as error:
        raise GrammarError(f"{reference!r} is not a URI: {error}", "$ref") from error


def _of_urn(base: str, reference: str) -> str:
    return base + reference if reference.startswith("#") else reference


def schema_text(schema: Schema) -> str:
    """The schema as JSON. Raises GrammarError when it is none, too long or nested too deeply."""
    if not isinstance(schema, (dict, bool)):
        raise GrammarError(f"a schema is an object or a boolean, not {type(schema).__name__}")
    _check_depth(schema)
    try:
        text = json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise GrammarError(f"the schema is not valid JSON: {error}") from error
    if len(text) > MAX_BYTES:
        raise GrammarError(f"the schema has {len(text)} bytes; at most {MAX_BYTES} are taken")
    return text


def _check_depth(schema: Schema) -> None:
    level: list[Any] = [schema]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for value in level
            if isinstance(value, (dict, list))
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise GrammarError(f"the schema is nested deeper than {MAX_DEPTH}")
