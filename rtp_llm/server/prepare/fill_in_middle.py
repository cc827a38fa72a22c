# SPDX-License-Identifier: Apache-2.0
"""`suffix` of a completion: the answer belongs between the prompt and it."""

from __future__ import annotations

import msgspec

from rtp_llm.server.errors import bad_request
from rtp_llm.server.openai.protocol import CompletionRequest
from rtp_llm.server.prepare.parse import refused
from rtp_llm.server.prepare.prompts import encode_prompt
from rtp_llm.server.prepare.sampling import Lengths
from rtp_llm.server.prepare.served_model import ServedModel
from rtp_llm.text.fill_in_middle import FillInMiddle, fill_in_middle


def tokens_of(model: ServedModel, name: str = "suffix") -> FillInMiddle:
    """How the model is asked; raises ApiError 400 that names the field `name` if it cannot be."""
    found = fill_in_middle(model.tokenizer, model.limits.vocab_size)
    if found is None:
        raise refused("suffix", name, "completion")
    return found


def suffix_tokens(request: CompletionRequest, model: ServedModel) -> FillInMiddle | None:
    """How the model is asked, None without a suffix; raises ApiError 400 for what does not go
    together with one."""
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
    """With the tokens that end an answer in the middle."""
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
    """The ids of the prompt; raises ApiError. `prefix`: a text, or the ids of one."""
    if isinstance(prefix, str):
        prefix, _ = encode_prompt(prefix, request, model, lengths, False)
    suffix, _ = encode_prompt(request.suffix or "", request, model, lengths, False)
    add = request.add_special_tokens is not False
    begin = model.tokenizer.encode("", add_special_tokens=True) if add else []
    return [*begin, *tokens.prompt(prefix, suffix)]
