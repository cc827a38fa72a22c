# SPDX-License-Identifier: Apache-2.0
"""POST /tokenize and /detokenize: turn a body into the body of the answer."""

from __future__ import annotations

from typing import Any

import msgspec

from rtp_llm.server.protocols.openai.chat_request import chat_prompt
from rtp_llm.server.turn.body_kind import BodyKind
from rtp_llm.server.turn.count_tokens import check_characters
from rtp_llm.server.turn.parse import parse_request
from rtp_llm.server.turn.prepare_turn import check_tools
from rtp_llm.server.turn.prepared import PreparedBody
from rtp_llm.server.turn.render import check_template, render
from rtp_llm.server.turn.sampling import Limits, check_token_ids
from rtp_llm.server.turn.served_model import ServedModel
from rtp_llm.server.types.errors import bad_request
from rtp_llm.server.types.openai_bodies import DetokenizeRequest, TokenizeRequest


def prepare_tokenize(body: bytes, model: ServedModel) -> PreparedBody:
    """Turn the body of POST /tokenize into the body of its answer; raises ApiError."""
    request, ignored = parse_request(body, TokenizeRequest, model)
    check_template(request.chat_template, model)
    if (request.prompt is None) == (request.messages is None):
        raise bad_request("Give one of prompt and messages.", param="prompt")
    if request.messages is not None:
        prompt = chat_prompt(request)
        check_tools(prompt, model)
        text = render(prompt, model).text
        add = bool(request.add_special_tokens)
    else:
        text, add = request.prompt or "", request.add_special_tokens is not False
    check_characters(text, "prompt" if request.messages is None else "messages", model)
    ids = model.tokenizer.encode(text, add)
    content: dict[str, Any] = {
        "count": len(ids),
        "max_model_len": model.limits.max_model_len or None,
        "tokens": ids,
        "token_strs": model.tokenizer.tokens(ids) if request.return_token_strs else None,
    }
    return PreparedBody(msgspec.json.encode(content), ignored)


TOKENIZE = BodyKind("tokenize", prepare_tokenize)


def prepare_detokenize(body: bytes, model: ServedModel) -> PreparedBody:
    """Turn the body of POST /detokenize into the body of its answer; raises ApiError."""
    request, ignored = parse_request(body, DetokenizeRequest, model)
    # The model's vocabulary may be larger than the tokenizer's.
    size = max(model.tokenizer.vocab_size, model.limits.vocab_size)
    check_token_ids("tokens", request.tokens, Limits(0, size))
    text = model.tokenizer.decode(request.tokens, bool(request.skip_special_tokens))
    return PreparedBody(msgspec.json.encode({"prompt": text}), ignored)


DETOKENIZE = BodyKind("detokenize", prepare_detokenize, renders=False)
