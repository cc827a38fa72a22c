# SPDX-License-Identifier: Apache-2.0
"""Requests to /infill, with llama.cpp's field names."""

from __future__ import annotations

from typing import Any

import msgspec

from rtp_llm.server.turn.llama_sampling import LlamaSampling

PATH = "/infill"


class InfillExtra(msgspec.Struct, kw_only=True):
    """A piece of another file."""

    text: str
    filename: str = "tmp"


class InfillRequest(LlamaSampling, kw_only=True):
    """POST /infill. The answer belongs between `input_prefix` + `prompt` and `input_suffix`.

    `n_predict`: most tokens of the answer, -1: as many as fit, 0: the prompt is only cached;
    `n_indent`: white space that every line after the first must begin with, one with less ends the
    answer; `t_max_predict_ms`: the first line that ends later, counted from the first token, is
    the last one; `response_fields`: which fields the answer has, as "content" and
    "timings/prompt_n". Fields below the first rule are refused unless they ask for nothing; those
    below the second are taken and not used.
    """

    input_prefix: str
    input_suffix: str
    input_extra: list[InfillExtra] | None = None
    prompt: str | None = None
    model: str | None = None
    stream: bool | None = None
    n_predict: int | None = None
    n_indent: int | None = None
    t_max_predict_ms: float | None = None
    samplers: str | list[str] | None = None
    response_fields: list[str] | None = None
    return_tokens: bool | None = None
    ignore_eos: bool | None = None
    grammar: str | None = None
    json_schema: str | dict[str, Any] | None = None
    # ---
    logit_bias: bool | list[Any] | dict[str, Any] | None = None
    n_probs: int | None = None
    lora: list[Any] | None = None
    dynatemp_range: float | None = None
    dry_multiplier: float | None = None
    xtc_probability: float | None = None
    top_n_sigma: float | None = None
    # ---
    id_slot: int | None = None
    cache_prompt: bool | None = None
    n_cache_reuse: int | None = None
    n_keep: int | None = None
    t_max_prompt_ms: float | None = None
    min_keep: int | None = None
    dynatemp_exponent: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: list[str] | None = None
    xtc_threshold: float | None = None
    timings_per_token: bool | None = None
    post_sampling_probs: bool | None = None
