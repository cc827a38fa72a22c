"""Conjunctions of atoms of arrays."""

from __future__ import annotations

from rtp_llm.text.grammar.errors import GrammarError
from rtp_llm.text.grammar.schema.atoms import (
    Conjunction,
    ItemAt,
    ItemsFrom,
    Length,
    SomeItem,
    Unique,
    Values,
)
from rtp_llm.text.grammar.schema.document import Literal
from rtp_llm.text.grammar.schema.shapes import ArrayShape, Node, node

MAX_PLACES = 16
"""Of an item that must be somewhere: a grammar lists the places."""


def arrays(atoms: Conjunction) -> list[ArrayShape]:
    """The shapes of arrays: one for each place that an item must be at."""
    atoms = tuple(each for atom in atoms for each in _unlisted(atom))
    shapes: list[ArrayShape] = []
    for alternative in _placed(atoms):
        shapes += _shape(alternative)
    return shapes


def _unlisted(atom: object) -> Conjunction:
    """What leaving values out says: the empty array, at most."""
    if not isinstance(atom, Values):
        return (atom,)  # type: ignore[return-value]
    if all(value == [] for value in atom.values):
        return (Length(least=1),)
    raise GrammarError("not, enum: arrays cannot be left out of what is allowed", "enum")


def _placed(atoms: Conjunction) -> list[Conjunction]:
    wanted = next((atom for atom in atoms if isinstance(atom, SomeItem)), None)
    if wanted is None:
        return [atoms]
    rest = tuple(atom for atom in atoms if atom is not wanted)
    most = _most(rest)
    if most is None or most - wanted.index > MAX_PLACES:
        raise GrammarError(
            f"{wanted.keyword} is supported beside maxItems of {MAX_PLACES} at most", wanted.keyword
        )
    return [
        placed
        for index in range(wanted.index, most)
        for placed in _placed((*rest, ItemAt(index, wanted.literal), Length(least=index + 1)))
    ]


def _most(atoms: Conjunction) -> int | None:
    """The greatest number of items, by maxItems or by items that are never allowed."""
    found = [atom.most for atom in atoms if isinstance(atom, Length) and atom.most is not None]
    found += [
        atom.index
        for atom in atoms
        if isinstance(atom, (ItemsFrom, ItemAt)) and node([atom.literal]) == (Literal(1),)
    ]
    return min(found, default=None)


def _shape(atoms: Conjunction) -> list[ArrayShape]:
    least = max((atom.least for atom in atoms if isinstance(atom, Length)), default=0)
    most = _most(atoms)
    if most is not None and least > most:
        return []
    unique = next((atom for atom in atoms if isinstance(atom, Unique)), None)
    if unique and (most is None or most > 1):
        raise GrammarError(
            f"uniqueItems at {unique.pointer} is not supported: items are not compared",
            "uniqueItems",
        )
    places = {atom.index for atom in atoms if isinstance(atom, ItemAt)}
    starts = {atom.index for atom in atoms if isinstance(atom, ItemsFrom)}
    count = max((*(place + 1 for place in places), *starts), default=0)
    if most is not None:
        count = min(count, most)
    prefix = tuple(_item(atoms, index) for index in range(count))
    return [ArrayShape(prefix, _item(atoms, max(count, *starts, 0, 0)), least, most)]


def _item(atoms: Conjunction, index: int) -> Node:
    found = [atom.literal for atom in atoms if isinstance(atom, ItemAt) and atom.index == index]
    found += [a.literal for a in atoms if isinstance(a, ItemsFrom) and a.index <= index]
    return node(found)
