# SPDX-License-Identifier: Apache-2.0
"""Types of the answers of /infill."""

from __future__ import annotations

from typing import Literal

import msgspec


class InfillTimings(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Of prompt and answer. `prompt_n`: its tokens that were computed; `cache_n`: that were not."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class InfillChunk(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An event of a stream that is not the last. `id_slot`: there are none here."""

    index: int = 0
    content: str
    tokens: list[int]
    stop: bool = False
    id_slot: int = -1
    tokens_predicted: int
    tokens_evaluated: int


class InfillAnswer(InfillChunk, kw_only=True):
    """A whole answer, or the last event of a stream, which has no text of its own.

    `stop_type`: an end token, a stop string, or a length, indentation or time.
    """

    stop: bool = True
    model: str
    has_new_line: bool
    truncated: bool
    stop_type: Literal["eos", "word", "limit"]
    stopping_word: str
    tokens_cached: int
    timings: InfillTimings
