# SPDX-License-Identifier: Apache-2.0
"""How an answer is shown."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class OllamaForm:
    """`chat`: of /api/chat, else of /api/generate; `model`: its name as it was asked for;
    `logprobs`: they are shown; `show_thinking` False: the thinking is left out."""

    chat: bool
    model: str
    logprobs: bool = False
    show_thinking: bool = True
