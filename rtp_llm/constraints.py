# SPDX-License-Identifier: Apache-2.0
"""What the engine is told of the form that an answer must have."""

from __future__ import annotations

from typing import Literal

import msgspec


class Grammar(msgspec.Struct, frozen=True, kw_only=True):
    """A grammar that the answer obeys, or from the end of its thinking on.

    ``text`` is in the form of ``library``: what rtp_llm.text.grammar makes of a request's schema,
    pattern or grammar. Equal texts are compiled once.
    """

    text: str
    library: Literal["llguidance"] = "llguidance"


class Thinking(msgspec.Struct, frozen=True, kw_only=True):
    """Reasoning that comes before the answer proper.

    It begins with the prompt's end, or, where there are ``begin_ids``, if the output begins with
    them; it ends behind the first ``end_ids``. ``budget``: after so many tokens of it the end is
    forced; None: no limit.
    """

    end_ids: tuple[int, ...]
    begin_ids: tuple[int, ...] = ()
    budget: int | None = None
