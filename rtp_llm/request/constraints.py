# SPDX-License-Identifier: Apache-2.0
"""What the engine is given about the form that an answer must have."""

from __future__ import annotations

from typing import Literal

import msgspec


class Grammar(msgspec.Struct, frozen=True, kw_only=True):
    """A grammar that the answer obeys, from the end of its thinking on if there is any.

    ``text`` is in the syntax of ``library``, made by rtp_llm.text.grammar from a request's schema,
    pattern or grammar. Equal texts are compiled once.
    """

    text: str
    library: Literal["llguidance"] = "llguidance"


class Thinking(msgspec.Struct, frozen=True, kw_only=True):
    """Reasoning that comes before the answer proper.

    It starts at the end of the prompt or, if there are ``begin_ids``, only when the output starts
    with them. It ends after the first ``end_ids``. ``budget`` is the number of tokens after which
    the end is forced; None: no limit.
    """

    end_ids: tuple[int, ...]
    begin_ids: tuple[int, ...] = ()
    budget: int | None = None
