# SPDX-License-Identifier: Apache-2.0
"""Turns prompt texts into token ids and jobs, without tokenising megabytes that cannot fit."""

from __future__ import annotations

from typing import Any

from rtp_llm.request.sampling_params import SamplingParams
from rtp_llm.server.turn.sampling import Lengths, Limits, stop_regex
from rtp_llm.server.turn.served_model import ServedModel
from rtp_llm.server.types.errors import bad_request
from rtp_llm.server.types.jobs import Job
from rtp_llm.server.types.openai_bodies import SamplingFields
from rtp_llm.text.tokenizer import Tokenizer

# Characters per token of the context: for a text more than twice as long, the beginning is checked
# first.
MANY_CHARACTERS = (4, 16)
# Characters per token kept of a text that is truncated to tokens, as no token is longer.
LONG_TOKEN = 128
# Cutting a text only changes the tokens next to the cut.
BORDER_TOKENS = 64


def encode_prompt(
    text: str,
    request: SamplingFields,
    model: ServedModel,
    lengths: Lengths,
    add_special_tokens: bool,
) -> tuple[list[int], bool]:
    """The token ids of a prompt, and whether they are complete; raises ApiError.

    `truncate_prompt_tokens` keeps the last or first ids; a text of which little is kept is cut
    before it is tokenised.
    """
    keep, limit = request.truncate_prompt_tokens, model.limits.max_model_len
    if keep is None:
        check_length(model.tokenizer, text, limit, lengths.prompt_name)
    else:
        size = LONG_TOKEN * limit
        text = text[:size] if request.truncation_side == "right" else text[-size:]
    ids = model.tokenizer.encode(text, add_special_tokens)
    kept = lengths.truncate(ids, request, model.limits)
    return kept, keep is None or len(kept) == len(ids)


def check_size(
    num_prompts: int, request: SamplingFields, model: ServedModel, param: str = "prompt"
) -> None:
    """Raise ApiError 400 for a request that even an idle server could not hold.

    Checked before tokenising, which takes long for very many prompts. `param`: the field with the
    prompts.
    """
    n = request.n or 1
    if num_prompts * n > model.max_sequences:
        raise bad_request(
            f"{num_prompts} prompts with n={n} are {num_prompts * n} sequences; this server "
            f"holds at most {model.max_sequences}.",
            param="n" if num_prompts == 1 else param,
            code="invalid_value",
        )


def make_job(
    request: SamplingFields, limits: Limits, ids: list[int], params: SamplingParams, **fields: Any
) -> Job:
    """Make a job with the request's text options; `fields`: additional fields of Job."""
    return Job(
        prompt_ids=ids,
        params=params,
        hidden=limits.eos_token_ids,
        skip_special_tokens=request.skip_special_tokens is not False,
        include_stop=bool(request.include_stop_str_in_output),
        stop_regex=stop_regex(request),
        cache_salt=request.cache_salt or "",
        **fields,
    )


def check_length(tokenizer: Tokenizer, text: str, limit: int, param: str) -> None:
    """Raise ApiError 400 for a text that is far too long, based on its beginning: without
    tokenising all of it.

    Tokens rarely have that many characters; if they do, the whole text is tokenised after all.
    """
    for size in (each * limit for each in MANY_CHARACTERS):
        if len(text) <= 2 * size:
            return
        count = len(tokenizer.encode(text[:size], False))
        if count > limit + BORDER_TOKENS:
            raise bad_request(
                f"This model's context is {limit} tokens; the first {size} of {len(text)} "
                f"characters in the prompt alone make {count}.",
                param=param,
                code="context_length_exceeded",
            )
