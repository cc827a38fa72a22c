# SPDX-License-Identifier: Apache-2.0
"""The interface between constraints and the library that compiles grammars and fills masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class GrammarError(ValueError):
    """A grammar cannot be compiled, or not within its limits; the message says why."""


class Matcher(Protocol):
    """The state of an answer in its grammar. End-of-sequence ids are never passed to it."""

    def copy(self) -> Matcher:
        """A copy in the same state; both advance independently."""

    def accept(self, token: int) -> bool:
        """Advance by ``token``; returns False if the grammar forbids it."""

    def rollback(self, count: int) -> None:
        """Take back the last ``count`` tokens."""

    def count_valid(self, tokens: Sequence[int]) -> int:
        """How many of ``tokens`` may follow, including a final end of sequence."""

    def forced(self) -> list[int]:
        """Tokens that must follow, in the tokenizer's own spelling; often none."""

    @property
    def done(self) -> bool:
        """Whether only the end of the sequence may follow."""

    @property
    def error(self) -> str | None:
        """Why it cannot continue, because of a limit of the library; its masks are then invalid."""


class MaskTask(NamedTuple):
    """Fill ``row`` with the tokens allowed now, and one more row after each of ``drafts``, as far
    as the grammar accepts them. The state of ``matcher`` does not change."""

    matcher: Matcher
    row: int
    drafts: Sequence[int] = ()


class GrammarLibrary(Protocol):
    """Compiles grammars for one vocabulary. `compile` may be called from any thread."""

    def compile(self, text: str) -> Matcher:
        """A matcher at the beginning of an answer, which has filled a mask already.

        Raises:
            GrammarError: the grammar is invalid or too large.
        """

    def fill(self, tasks: Sequence[MaskTask], masks: NDArray[np.int32]) -> None:
        """Write masks [P, ceil(V / 32)] as `apply_token_bitmask` reads them, without the GIL.

        End-of-sequence ids are allowed where the grammar may end.
        """

    def text_bytes(self, token: int) -> bytes:
        """What a token adds to a text, in UTF-8; nothing if it is special or unknown."""

    def size_of(self, text: str) -> int:
        """The approximate size of a compiled grammar in bytes."""
