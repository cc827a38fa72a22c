# SPDX-License-Identifier: Apache-2.0
"""Response options of a message."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class MessageResponseOptions:
    """`show_thinking` False: the thinking is only contained in the signature; `cut_by_context`: the
    context has less room than max_tokens."""

    model: str
    show_thinking: bool = True
    cut_by_context: bool = False
