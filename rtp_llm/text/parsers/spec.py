# SPDX-License-Identifier: Apache-2.0
"""How the text of an answer is read, in plain data that travels between processes."""

from __future__ import annotations

from dataclasses import dataclass

from rtp_llm.text.conversation import Tool


@dataclass(frozen=True)
class ParserSpec:
    """``tool_calls`` and ``reasoning`` name forms of rtp_llm.text.parsers; None: not looked for.

    ``reasoning_open``: the prompt ends inside of the reasoning. ``tools``: those declared; calls of
    others are text if ``only_tools``, else calls.
    """

    tool_calls: str | None = None
    reasoning: str | None = None
    reasoning_open: bool = False
    tools: tuple[Tool, ...] = ()
    only_tools: bool = False

    @property
    def plain(self) -> bool:
        """The text is the answer, as it is."""
        return self.tool_calls is None and self.reasoning is None
