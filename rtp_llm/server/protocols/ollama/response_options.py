# SPDX-License-Identifier: Apache-2.0
"""Response options."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class OllamaResponseOptions:
    """`chat`: for /api/chat, else /api/generate; `model`: its name as requested; `logprobs`: show
    log-probabilities; `show_thinking` False: omit the thinking."""

    chat: bool
    model: str
    logprobs: bool = False
    show_thinking: bool = True
