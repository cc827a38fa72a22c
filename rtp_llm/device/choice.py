# SPDX-License-Identifier: Apache-2.0
"""Chooses one of several kinds by their answers on whether they support a request."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from rtp_llm.device.base import Support

AUTO = "auto"  # of a setting that may name a kind: the first that says yes


class NoChoiceError(ValueError):
    """No kind, or not the one named, supports the request; the message has the reasons."""


class Named(Protocol):
    """A kind that a setting can name."""

    @property
    def name(self) -> str: ...


Kind = TypeVar("Kind", bound=Named)


def load_class(place: str) -> Any:
    """The class at "module:name"; its module is imported now."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def ask(
    kinds: Iterable[Any], question: object, rank: Callable[[Any], int]
) -> list[tuple[Any, Support]]:
    """Collect every kind's answer, highest rank first (ties keep their order)."""
    best_first = sorted(kinds, key=lambda kind: -rank(kind))
    return [(kind, kind.supports(question)) for kind in best_first]


def choose(
    answers: Sequence[tuple[Kind, Support]], requested: str, setting: str, task: str
) -> Kind:
    """Return the `requested` kind of `setting`, or with AUTO the first that supports `task`.

    Raises NoChoiceError with the reason of the named kind, the known names if there is no such
    kind, or with AUTO all reasons.
    """
    if requested == AUTO:
        for kind, answer in answers:
            if answer:
                return kind
        raise NoChoiceError(f"nothing computes {task}: {reasons(answers)}")
    for kind, answer in answers:
        if kind.name == requested:
            if not answer:
                raise NoChoiceError(f"{setting} {requested}: {answer.reason} ({task})")
            return kind
    known = ", ".join(kind.name for kind, _ in answers)
    raise NoChoiceError(f"{setting} {requested} is unknown; there are {AUTO}, {known}")


def reasons(answers: Sequence[tuple[Kind, Support]]) -> str:
    """Why each of them said no."""
    return "; ".join(f"{kind.name}: {answer.reason}" for kind, answer in answers if not answer)


def outcomes(answers: Sequence[tuple[Kind, Support]], requested: str, setting: str) -> list[str]:
    """Describe the outcome for each kind, best first.

    The one that `setting` asked for is chosen, or with AUTO the first that said yes.
    """
    first = next((kind.name for kind, answer in answers if answer), "")
    given: list[str] = []
    for kind, answer in answers:
        if not answer:
            given.append(f"no: {answer.reason}")
        elif requested != AUTO:
            given.append(f"chosen by {setting}" if kind.name == requested else "supported")
        else:
            given.append("chosen" if kind.name == first else "supported, lower priority")
    return given
