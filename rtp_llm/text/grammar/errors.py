"""What is wrong with a grammar that a request brings."""

from __future__ import annotations


class GrammarError(ValueError):
    """A grammar that cannot be enforced as it is written; the message says what to change.

    `keyword`: the word at fault (of a JSON schema, a pattern or a structural tag), where one is.
    """

    def __init__(self, message: str, keyword: str | None = None) -> None:
        super().__init__(message)
        self.keyword = keyword
