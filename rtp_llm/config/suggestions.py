# SPDX-License-Identifier: Apache-2.0
"""Suggests the intended name for one that does not exist, if both mean the same."""

from __future__ import annotations

from collections.abc import Iterable

# Synonyms in names of settings.
_ALIKE = {
    "sequence": "seq",
    "sequences": "seq",
    "seqs": "seq",
    "length": "len",
    "maximum": "max",
    "minimum": "min",
    "number": "num",
    "memory": "mem",
    "mib": "mb",
    "requests": "request",
    "tokens": "token",
    "threads": "thread",
    "headers": "header",
    "origins": "origin",
    "connections": "connection",
    "seconds": "second",
}


def meant(name: str, known: Iterable[str]) -> str | None:
    """Return the `known` name that `name` misspells or that has the same words, else None.

    A short name may have one wrong letter, a long one three. If there are several words, one may be
    missing.
    """
    known = [*known]
    found = [(distance, other) for other in known if (distance := _apart(name, other)) is not None]
    if found:
        return min(found)[1]
    words = _words(name)
    longer = [other for other in known if len(_words(other)) == len(words) + 1]
    whole = [other for other in longer if len(words) > 1 and words < _words(other)]
    return whole[0] if len(whole) == 1 else None


def _apart(name: str, other: str) -> int | None:
    """The number of differing letters; None if too many differ and the words differ too."""
    if _words(name) == _words(other):
        return 0
    plain, known = (_plain(each) for each in (name, other))
    max_distance = min(3, len(plain) // 4)
    if abs(len(plain) - len(known)) > max_distance or plain[:1] != known[:1]:
        return None
    distance = _edits(plain, known)
    return distance if distance <= max_distance else None


def _plain(name: str) -> str:
    return name.lower().strip("-").replace("_", "-")


def _words(name: str) -> frozenset[str]:
    return frozenset(_ALIKE.get(word, word) for word in _plain(name).split("-"))


def _edits(first: str, second: str) -> int:
    """Edit distance: insertions, deletions, replacements and swaps of adjacent letters."""
    before: list[int] = []
    row = list(range(len(second) + 1))
    for i, a in enumerate(first, 1):
        earlier, before, row = before, row, [i]
        for j, b in enumerate(second, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == second[j - 2] and first[i - 2] == b:
                cost = min(cost, earlier[j - 2] + 1)
            row.append(cost)
    return row[-1]
