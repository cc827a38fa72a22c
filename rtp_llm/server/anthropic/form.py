# SPDX-License-Identifier: Apache-2.0
"""How a message is shown."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class MessageForm:
    """`show_thinking` False: its text is in the signature alone; `cut_by_context`: the context had
    less room than max_tokens."""

    model: str
    show_thinking: bool = True
    cut_by_context: bool = False
