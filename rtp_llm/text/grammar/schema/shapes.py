# SPDX-License-Identifier: Apache-2.0
"""Values of one type in a form that llguidance accepts: the outcome of a conjunction of atoms."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rtp_llm.text.grammar.schema.document import Literal

Node = tuple[Literal, ...]
"""Subschemas that all hold, each once, for one value. Empty: any value."""

NEVER: Node = (Literal(1),)


def node(literals: list[Literal]) -> Node:
    """The node of `literals`; those that are true are left out."""
    if Literal(1) in literals or Literal(0, False) in literals:
        return NEVER
    return tuple(
        dict.fromkeys(each for each in literals if each not in (Literal(0), Literal(1, False)))
    )


@dataclass(frozen=True)
class Scalar:
    """A schema without subschemas, in llguidance's words.

    `limits`: keywords that the request does not have, which keep answers from growing for ever.
    """

    schema: dict[str, Any]
    limits: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ArrayShape:
    """`prefix`, then `items`; from `minimum` to `maximum` of them all."""

    prefix: tuple[Node, ...] = ()
    items: Node = ()
    minimum: int = 0
    maximum: int | None = None


@dataclass(frozen=True)
class ObjectShape:
    """Named properties in their order, then others by the pattern of their name, then the rest."""

    named: dict[str, Node] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    patterns: dict[str, Node] = field(default_factory=dict)
    rest: Node = ()
    minimum: int = 0
    maximum: int | None = None


Shape = Scalar | ArrayShape | ObjectShape
