# SPDX-License-Identifier: Apache-2.0
"""Describes a model's thinking to the engine."""

from __future__ import annotations

from rtp_llm.request.constraints import Thinking
from rtp_llm.text.parsers.registry import detect_reasoning, reasoning_is_open, thinking_tags
from rtp_llm.text.tokenizer import Tokenizer


def thinking_of(
    reasoning: str,
    is_open: bool,
    tokenizer: Tokenizer,
    budget: int | None = None,
    *,
    before_calls: bool = False,
) -> Thinking:
    """Thinking of the form `reasoning`. `is_open`: the prompt ends inside of it.

    `before_calls`: what follows may be a call.
    """
    begin, end = thinking_tags(reasoning, before_calls=before_calls)
    return Thinking(
        end_ids=tuple(tokenizer.encode(end, add_special_tokens=False)),
        begin_ids=() if is_open else tuple(tokenizer.encode(begin, add_special_tokens=False)),
        budget=budget,
    )


def thinking_in(prompt: str, tokenizer: Tokenizer) -> Thinking | None:
    """The thinking that may precede the answer to a prompt; None if the model does not think."""
    form = detect_reasoning(tokenizer.chat_template or "", tokenizer)
    return None if form is None else thinking_of(form, reasoning_is_open(prompt, form), tokenizer)
