# SPDX-License-Identifier: Apache-2.0
"""Counts the tokens of a conversation."""

from __future__ import annotations

from dataclasses import replace

from rtp_llm.server.turn.chat_turn import ChatPrompt
from rtp_llm.server.turn.prepare_turn import shown_tools
from rtp_llm.server.turn.render import render
from rtp_llm.server.turn.served_model import ServedModel
from rtp_llm.server.types.errors import bad_request
from rtp_llm.text.conversation import ToolChoice


def count_prompt(prompt: ChatPrompt, choice: ToolChoice, name: str, model: ServedModel) -> int:
    """Number of tokens of a conversation in the field `name`; raises ApiError."""
    prompt = replace(prompt, tools=shown_tools(prompt, choice, model))
    text = render(prompt, model).text
    check_characters(text, name, model)
    return len(model.tokenizer.encode(text, add_special_tokens=False))


def check_characters(text: str, param: str, model: ServedModel) -> None:
    """Raise ApiError 400 for a text that would take too long to tokenise; `param`: its field."""
    if len(text) > model.max_tokenize_characters:
        raise bad_request(
            f"The text has {len(text)} characters; at most {model.max_tokenize_characters} are "
            "tokenised at once (see --max-tokenize-characters).",
            param=param,
            code="text_too_long",
        )
