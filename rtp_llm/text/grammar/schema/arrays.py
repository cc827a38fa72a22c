# SPDX-License-Identifier: Apache-2.0
"""Conjunctions of atoms of arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import chain, combinations, product
from math import comb

from rtp_llm.text.grammar.errors import GrammarError, UnplacedError
from rtp_llm.text.grammar.schema.atoms import (
    Atom,
    Conjunction,
    Counted,
    ItemAt,
    ItemsFrom,
    Length,
    Unique,
    Values,
)
from rtp_llm.text.grammar.schema.document import Literal
from rtp_llm.text.grammar.schema.shapes import ArrayShape, Node, node

MAX_PLACES = 16
"""Of items that are counted: a grammar lists the places."""
MAX_SHAPES = 256
"""Of one array, by the places of what is counted."""

Distinct = Callable[[ArrayShape, str], list[ArrayShape]]


def arrays(atoms: Conjunction, distinct: Distinct) -> list[ArrayShape]:
    """The shapes of arrays, one for each choice of places for counted items.

    `distinct(shape, pointer)` returns the shapes of its arrays without equal items.
    """
    atoms = tuple(each for atom in atoms for each in _unlisted(atom))
    base = tuple(atom for atom in atoms if not isinstance(atom, Counted))
    counted = [atom for atom in atoms if isinstance(atom, Counted)]
    shapes: list[ArrayShape] = []
    for placed in product(*_choices(base, counted)):
        shapes += _shape((*base, *chain.from_iterable(placed)), distinct)
    return shapes


def _unlisted(atom: object) -> Conjunction:
    """The part of an exclusion of values that matters here: at most the empty array."""
    if not isinstance(atom, Values):
        return (atom,)  # type: ignore[return-value]
    if all(value == [] for value in atom.values):
        return (Length(minimum=1),)
    raise GrammarError("not, enum: arrays cannot be left out of what is allowed", "enum")


def _choices(base: Conjunction, counted: list[Counted]) -> list[list[Conjunction]]:
    """The conjunctions for each count, one for each choice of places.

    Past the places that `base` or a count names, all places are equivalent: if any array satisfies
    the schema, one with its counted items at named places or immediately after them does.
    """
    end = _maximum(base)
    counted = [_within(atom, end) for atom in counted]
    chosen = [atom.minimum if atom.maximum is None else atom.maximum for atom in counted]
    named = [atom.index + 1 for atom in base if isinstance(atom, ItemAt)]
    named += [atom.index for atom in (*base, *counted) if isinstance(atom, (ItemsFrom, Counted))]
    fixed_end = max(named, default=0) + sum(chosen)
    share = MAX_SHAPES ** (1 / max(len(counted), 1))
    found: list[list[Conjunction]] = []
    combined = 1
    for atom, count in zip(counted, chosen, strict=True):
        places = MAX_PLACES
        while places > count and comb(places, count) > share:
            places -= 1
        last = max(fixed_end, atom.index + places)
        spots = range(atom.index, last if end is None else min(last, end))
        combined *= comb(len(spots), count)
        if count > MAX_PLACES or combined > MAX_SHAPES:
            raise UnplacedError(
                atom.keyword,
                f"up to {MAX_PLACES} items are counted, at up to {MAX_SHAPES} choices of places",
            )
        found.append([_at(each, atom) for each in combinations(spots, count)])
    return found


def _within(atom: Counted, end: int | None) -> Counted:
    """Drop a `maximum` that the maximum length makes impossible to exceed."""
    ample = end is not None and atom.maximum is not None and atom.index + atom.maximum >= end
    return replace(atom, maximum=None) if ample else atom


def _at(spots: tuple[int, ...], wanted: Counted) -> Conjunction:
    """The first `minimum` spots hold the item; with a `maximum`, no place outside `spots` does."""
    needed = spots[: wanted.minimum]
    found: list[Atom] = [ItemAt(spot, wanted.literal) for spot in needed]
    if needed:
        found.append(Length(minimum=needed[-1] + 1))
    if wanted.maximum is not None:
        others = (place for place in range(wanted.index, spots[-1]) if place not in spots)
        found += [ItemAt(place, ~wanted.literal) for place in others]
        found.append(ItemsFrom(spots[-1] + 1, ~wanted.literal))
    return tuple(found)


def _maximum(atoms: Conjunction) -> int | None:
    """The greatest number of items, by maxItems or by items that are never allowed."""
    found = [
        atom.maximum for atom in atoms if isinstance(atom, Length) and atom.maximum is not None
    ]
    found += [
        atom.index
        for atom in atoms
        if isinstance(atom, (ItemsFrom, ItemAt)) and node([atom.literal]) == (Literal(1),)
    ]
    return min(found, default=None)


def _shape(atoms: Conjunction, distinct: Distinct) -> list[ArrayShape]:
    minimum = max((atom.minimum for atom in atoms if isinstance(atom, Length)), default=0)
    maximum = _maximum(atoms)
    if maximum is not None and minimum > maximum:
        return []
    places = {atom.index for atom in atoms if isinstance(atom, ItemAt)}
    starts = {atom.index for atom in atoms if isinstance(atom, ItemsFrom)}
    count = max((*(place + 1 for place in places), *starts), default=0)
    if maximum is not None:
        count = min(count, maximum)
    item = _items(atoms)
    prefix = tuple(item(index) for index in range(count))
    shape = ArrayShape(prefix, item(max(count, *starts, 0, 0)), minimum, maximum)
    unique = next((atom for atom in atoms if isinstance(atom, Unique)), None)
    return distinct(shape, unique.pointer) if unique else [shape]


def _items(atoms: Conjunction) -> Callable[[int], Node]:
    """Return a function that maps an index to the node of the item there."""
    placed: dict[int, list[Literal]] = {}
    for atom in atoms:
        if isinstance(atom, ItemAt):
            placed.setdefault(atom.index, []).append(atom.literal)
    later = [(atom.index, atom.literal) for atom in atoms if isinstance(atom, ItemsFrom)]

    def item(index: int) -> Node:
        return node([*placed.get(index, ()), *(each for at, each in later if at <= index)])

    return item
