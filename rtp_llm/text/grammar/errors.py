# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a grammar that a request brings."""

from __future__ import annotations


class GrammarError(ValueError):
    """A grammar that cannot be enforced as it is written; the message says what to change.

    `keyword`: the word at fault (of a JSON schema, a pattern or a structural tag), where one is.
    """

    def __init__(self, message: str, keyword: str | None = None) -> None:
        super().__init__(message)
        self.keyword = keyword


class UnplacedError(GrammarError):
    """Of a keyword whose place in the schema is known further out."""

    def __init__(self, keyword: str, reason: str) -> None:
        super().__init__(f"{keyword}: {reason}", keyword)
        self._keyword, self._reason = keyword, reason

    def at(self, pointer: str) -> GrammarError:
        """The same with its place."""
        return GrammarError(f"{self._keyword} at {pointer}: {self._reason}", self._keyword)
