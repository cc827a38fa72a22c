# SPDX-License-Identifier: Apache-2.0
"""Errors in grammars of requests."""

from __future__ import annotations


class GrammarError(ValueError):
    """A grammar that cannot be enforced as it is written; the message says what to change.

    `keyword`: the word at fault (of a JSON schema, a pattern or a structural tag), where one is.
    """

    def __init__(self, message: str, keyword: str | None = None) -> None:
        super().__init__(message)
        self.keyword = keyword


class UnplacedError(GrammarError):
    """An error in a keyword of which only the caller knows the place in the schema."""

    def __init__(self, keyword: str, reason: str) -> None:
        super().__init__(f"{keyword}: {reason}", keyword)
        self._keyword, self._reason = keyword, reason

    def at(self, pointer: str) -> GrammarError:
        """Return the error with its place in the schema added."""
        return GrammarError(f"{self._keyword} at {pointer}: {self._reason}", self._keyword)
