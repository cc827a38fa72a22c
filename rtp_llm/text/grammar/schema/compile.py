# SPDX-License-Identifier: Apache-2.0
"""Rewrites a schema to keywords of llguidance that it enforces exactly."""

from __future__ import annotations

import json
from typing import Any

from rtp_llm.text.grammar.errors import GrammarError
from rtp_llm.text.grammar.pattern import MAX_NAME, none_of
from rtp_llm.text.grammar.schema.document import Document, Schema, schema_text
from rtp_llm.text.grammar.schema.enforced import enforced
from rtp_llm.text.grammar.schema.expand import Expander
from rtp_llm.text.grammar.schema.formula import MAX_CHAIN
from rtp_llm.text.grammar.schema.scalars import anchored
from rtp_llm.text.grammar.schema.shapes import (
    NEVER,
    ArrayShape,
    Node,
    ObjectShape,
    Scalar,
    Shape,
)

MAX_NODES = 4000
MAX_DEPTH = 16
"""Of nodes in place; deeper ones are definitions, since llguidance's parser of JSON has a limit."""
MAX_LETTERS = 2000
"""Of the names that free ones must not be: as a pattern, which has them as a tree."""


def compile_schema(schema: Schema, *, strict: bool = True) -> dict[str, Any]:
    """Check the schema and compile it; see compile_text."""
    return compile_text(schema_text(schema), strict=strict)


def compile_text(text: str, *, strict: bool) -> dict[str, Any]:
    """Rewrite a schema to an equivalent one that llguidance enforces exactly.

    The result uses `type`, `enum`, `anyOf`, `$ref` to `$defs`, and the supported keywords of each
    type. If `strict`, raises GrammarError with the unsupported keyword and its place; otherwise
    drops unsupported keywords, so that the result accepts more than the schema does.
    """
    document = Document(text, strict=strict)
    try:
        return _Writer(document).write()
    except RecursionError as error:
        reason = "the schema's keywords are nested too deeply in each other through $ref"
        raise GrammarError(f"{reason}; about {MAX_CHAIN} levels are read", "$ref") from error


class _Writer:
    def __init__(self, document: Document) -> None:
        self._document = document
        self._expander = Expander(document)
        self._shapes: dict[Node, list[Shape]] = {}
        self._alive: set[Node] = {()}
        self._uses: dict[Node, int] = {}
        self._names: dict[Node, str] = {}
        self._limited: dict[str, str] = {}
        self._definitions: dict[str, Any] = {}
        self._escapes = True
        self._depth = 0

    def write(self) -> dict[str, Any]:
        root: Node = (self._document.literal(self._document.root, "#"),)
        root = () if root[0].schema == 0 else root
        if root:
            self._reach(root)
            self._find_alive()
        if root not in self._alive:
            raise GrammarError("no finite JSON value satisfies the schema")
        body = self._node(root)
        body = {"anyOf": [body]} if "$ref" in body else dict(body)
        if self._definitions:
            body["$defs"] = self._definitions
        if not self._escapes:
            body["x-guidance"] = {"json_allowed_escapes": 'nrbtf\\"'}
        return body

    def _reach(self, root: Node) -> None:
        waiting = [root]
        self._uses[root] = 1
        while waiting:
            node = waiting.pop()
            if node in self._shapes:
                continue
            self._shapes[node] = self._expander.shapes(node)
            if len(self._shapes) > MAX_NODES:
                raise GrammarError(f"the schema comes to more than {MAX_NODES} subschemas")
            for shape in self._shapes[node]:
                for child in _children(shape):
                    self._uses[child] = self._uses.get(child, 0) + 1
                    waiting.append(child)

    def _find_alive(self) -> None:
        """Find the nodes that some finite value satisfies."""
        grown = True
        while grown:
            grown = False
            for node, shapes in self._shapes.items():
                if node not in self._alive and any(self._is_alive(shape) for shape in shapes):
                    self._alive.add(node)
                    grown = True

    def _is_alive(self, shape: Shape) -> bool:
        if isinstance(shape, Scalar):
            return True
        if isinstance(shape, ObjectShape):
            return all(shape.named[name] in self._alive for name in shape.required)
        needed = shape.prefix[: shape.minimum]
        more = shape.minimum > len(shape.prefix)
        return all(node in self._alive for node in needed) and (
            not more or shape.items in self._alive
        )

    def _node(self, node: Node) -> dict[str, Any]:
        """The node in place, or a reference where it is used more than once."""
        if not node:
            return {}
        if node in self._names:
            return {"$ref": f"#/$defs/{self._names[node]}"}
        if self._uses.get(node, 0) < 2 and self._depth < MAX_DEPTH:
            self._depth += 1
            found = self._alternatives(node)
            self._depth -= 1
            return found
        name = self._names[node] = f"n{len(self._names)}"
        self._definitions[name] = {}
        depth, self._depth = self._depth, 0
        self._definitions[name] = self._alternatives(node)
        self._depth = depth
        return {"$ref": f"#/$defs/{name}"}

    def _alternatives(self, node: Node) -> dict[str, Any]:
        shapes = [shape for shape in self._shapes[node] if self._is_alive(shape)]
        found = [self._shape(shape, node) for shape in shapes]
        return found[0] if len(found) == 1 else {"anyOf": found}

    def _scalar(self, shape: Scalar, node: Node) -> dict[str, Any]:
        """A scalar with limits is emitted only once, since compiling each takes a millisecond."""
        schema = {**shape.schema, **shape.limits}
        schema = enforced(
            schema, self._document.pointer(node[0].schema), strict=self._document.strict
        )
        if not shape.limits:
            return schema
        key = json.dumps(schema)
        name = self._limited.setdefault(key, f"limited{len(self._limited)}")
        self._definitions[name] = schema
        return {"$ref": f"#/$defs/{name}"}

    def _shape(self, shape: Shape, node: Node) -> dict[str, Any]:
        if isinstance(shape, Scalar):
            return self._scalar(shape, node)
        return self._array(shape) if isinstance(shape, ArrayShape) else self._object(shape)

    def _array(self, shape: ArrayShape) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "array"}
        dead = [index for index, node in enumerate(shape.prefix) if node not in self._alive]
        prefix = shape.prefix[: dead[0]] if dead else shape.prefix
        ended = bool(dead) or shape.items not in self._alive
        maximum = shape.maximum
        if ended:
            maximum = len(prefix) if maximum is None else min(maximum, len(prefix))
        if prefix:
            schema["prefixItems"] = [self._node(node) for node in prefix]
        if ended or (maximum is not None and maximum <= len(prefix)):
            schema["items"] = False
        elif shape.items:
            schema["items"] = self._node(shape.items)
        if shape.minimum:
            schema["minItems"] = shape.minimum
        if maximum is not None:
            schema["maxItems"] = maximum
        return schema

    def _object(self, shape: ObjectShape) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "object"}
        named = {n: v if v in self._alive else NEVER for n, v in shape.named.items()}
        if named:
            schema["properties"] = {
                name: False if node == NEVER else self._node(node) for name, node in named.items()
            }
        if shape.required:
            schema["required"] = list(shape.required)
        patterns = {
            anchored(pattern): False if node not in self._alive else self._node(node)
            for pattern, node in shape.patterns.items()
        }
        rest = shape.rest in self._alive
        if rest and named and not patterns and _is_small(named):
            # Free names as a pattern: next to named ones, llguidance accepts escapes like \u0061.
            patterns = {anchored(none_of(list(named))): self._node(shape.rest)}
            rest = False
        if patterns:
            schema["patternProperties"] = patterns
        if not rest:
            schema["additionalProperties"] = False
        elif patterns or named or shape.rest:
            schema["additionalProperties"] = self._node(shape.rest)
            self._escapes = self._escapes and not (patterns or named)
        if shape.minimum:
            schema["minProperties"] = shape.minimum
        if shape.maximum is not None:
            schema["maxProperties"] = shape.maximum
        return schema


def _is_small(named: dict[str, Node]) -> bool:
    return sum(map(len, named)) <= MAX_LETTERS and max(map(len, named)) <= MAX_NAME


def _children(shape: Shape) -> list[Node]:
    if isinstance(shape, ArrayShape):
        found = [*shape.prefix, shape.items]
    elif isinstance(shape, ObjectShape):
        found = [*shape.named.values(), *shape.patterns.values(), shape.rest]
    else:
        found = []
    return [node for node in found if node and node != NEVER]
