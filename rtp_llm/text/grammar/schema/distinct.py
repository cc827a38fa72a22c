# SPDX-License-Identifier: Apache-2.0
"""uniqueItems: arrays without equal items, where their values can be listed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

from rtp_llm.text.grammar.errors import GrammarError
from rtp_llm.text.grammar.schema.document import Document, Literal
from rtp_llm.text.grammar.schema.shapes import NEVER, ArrayShape, Node, Scalar, Shape
from rtp_llm.text.grammar.schema.values import canonical

MAX_ITEMS = 16
MAX_ORDERS = 256
"""Of listed values: a grammar lists the arrays."""


class DistinctItems:
    """Makes the shapes of arrays without equal items.

    `shapes(node)`: its alternatives. `overlap(node, node)`: whether a value may satisfy both.
    """

    def __init__(
        self,
        document: Document,
        shapes: Callable[[Node], list[Shape]],
        overlap: Callable[[Node, Node], bool],
    ) -> None:
        self._document = document
        self._shapes = shapes
        self._overlap = overlap
        self._constants: dict[str, Node] = {}

    def of(self, shape: ArrayShape, pointer: str) -> list[ArrayShape]:
        """The longest arrays, which may end earlier. GrammarError if items cannot be compared."""
        if shape.maximum is not None and shape.maximum <= 1:
            return [shape]
        nodes = self._nodes(shape, pointer)
        listed = [self._listed(node) for node in nodes]
        for one, other in combinations(range(len(nodes)), 2):
            known = listed[one] is not None and listed[other] is not None
            if not known and self._overlap(nodes[one], nodes[other]):
                raise _refusal(pointer, "items are not compared unless their values are listed")
        found: list[ArrayShape] = []
        for prefix in self._orders(nodes, listed, frozenset()):
            if len(found) == MAX_ORDERS:
                raise _refusal(pointer, f"there are more than {MAX_ORDERS} orders of items")
            if len(prefix) >= shape.minimum:
                found.append(ArrayShape(prefix, NEVER, shape.minimum, len(prefix)))
        return found

    def _nodes(self, shape: ArrayShape, pointer: str) -> list[Node]:
        """The nodes of all items that the array may have."""
        nodes = [*shape.prefix]
        more = None if shape.maximum is None else shape.maximum - len(nodes)
        if shape.items != NEVER and (more is None or more > 0):
            values = self._listed(shape.items)
            if values is None and more != 1:
                raise _refusal(pointer, "items are not compared unless their values are listed")
            many = len(values or (None,))
            many = many if more is None else min(many, more)
            nodes += [shape.items] * min(many, MAX_ITEMS + 1)
        nodes = nodes if NEVER not in nodes else nodes[: nodes.index(NEVER)]
        if len(nodes) > MAX_ITEMS:
            raise _refusal(pointer, f"there are more than {MAX_ORDERS} orders of items")
        return nodes

    def _listed(self, node: Node) -> dict[str, Any] | None:
        """The values of a node, if they are few."""
        if not node:
            return None
        try:
            listed = [_values(shape) for shape in self._shapes(node)]
        except GrammarError:  # that is for whom the items are written
            return None
        found: dict[str, Any] = {}
        for values in listed:
            if values is None:
                return None
            found |= {canonical(value): value for value in values}
        return found

    def _orders(
        self, nodes: list[Node], listed: list[dict[str, Any] | None], used: frozenset[str]
    ) -> Iterator[tuple[Node, ...]]:
        """Items until there are no more, or none that was not used."""
        if not nodes:
            yield ()
            return
        values = listed[0]
        if values is None:
            for rest in self._orders(nodes[1:], listed[1:], used):
                yield (nodes[0], *rest)
            return
        left = [key for key in values if key not in used]
        for key in left:
            item = self._constant(key, values[key])
            for rest in self._orders(nodes[1:], listed[1:], used | {key}):
                yield (item, *rest)
        if not left:
            yield ()

    def _constant(self, key: str, value: Any) -> Node:
        if key not in self._constants:
            self._constants[key] = (self._document.made({"const": value}, Literal(0)),)
        return self._constants[key]


def _values(shape: Shape) -> list[Any] | None:
    """The values of a scalar, if they are few."""
    if not isinstance(shape, Scalar):
        return None
    if "enum" in shape.schema:
        return list(shape.schema["enum"])
    if shape.schema["type"] == "null":
        return [None]
    if shape.schema["type"] == "boolean":
        return [False, True]
    if shape.schema["type"] == "integer" and shape.schema.keys() == {"type", "minimum", "maximum"}:
        minimum, maximum = shape.schema["minimum"], shape.schema["maximum"]
        return [*range(minimum, maximum + 1)] if maximum - minimum < MAX_ORDERS else None
    return None


def _refusal(pointer: str, reason: str) -> GrammarError:
    return GrammarError(f"uniqueItems at {pointer} is not supported: {reason}", "uniqueItems")
