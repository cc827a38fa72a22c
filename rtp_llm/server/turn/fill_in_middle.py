# SPDX-License-Identifier: Apache-2.0
"""`suffix` of a completion: the answer goes between the prompt and the suffix."""

from __future__ import annotations

import msgspec

from rtp_llm.server.turn.parse import refused
from rtp_llm.server.turn.prompts import encode_prompt
from rtp_llm.server.turn.sampling import Lengths
from rtp_llm.server.turn.served_model import ServedModel
from rtp_llm.server.types.errors import bad_request
from rtp_llm.server.types.openai_bodies import CompletionRequest
from rtp_llm.text.fill_in_middle import FillInMiddle, fill_in_middle


def tokens_of(model: ServedModel, name: str = "suffix") -> FillInMiddle:
    """The model's fill-in-the-middle tokens; raises ApiError 400 naming `name` without them."""
    found = fill_in_middle(model.tokenizer, model.limits.vocab_size)
    if found is None:
        raise refused("suffix", name, "completion")
    return found


def suffix_tokens(request: CompletionRequest, model: ServedModel) -> FillInMiddle | None:
    """The fill-in-the-middle tokens, None without a suffix; raises ApiError 400 for fields that are
    incompatible with a suffix."""
    if not request.suffix:
        return None
    for name in ("echo", "truncate_prompt_tokens", "prompt_logprobs"):
        if getattr(request, name) not in (None, False):
            raise bad_request(
                f"{name}: not available with a suffix, which is a part of the prompt.",
                name,
                "invalid_value",
            )
    return tokens_of(model)


def with_ends(request: CompletionRequest, tokens: FillInMiddle | None) -> CompletionRequest:
    """The request with the tokens that end a middle added to its stop tokens."""
    if tokens is None or request.ignore_eos:
        return request
    stops = [*(request.stop_token_ids or ()), *tokens.ends]
    return msgspec.structs.replace(request, stop_token_ids=stops)


def middle_prompt(
    prefix: str | list[int],
    request: CompletionRequest,
    tokens: FillInMiddle,
    model: ServedModel,
    lengths: Lengths,
) -> list[int]:
    """The token ids of the prompt; raises ApiError. `prefix`: text or token ids."""
    if isinstance(prefix, str):
        prefix, _ = encode_prompt(prefix, request, model, lengths, False)
    suffix, _ = encode_prompt(request.suffix or "", request, model, lengths, False)
    add = request.add_special_tokens is not False
    begin = model.tokenizer.encode("", add_special_tokens=True) if add else []
    return [*begin, *tokens.prompt(prefix, suffix)]
