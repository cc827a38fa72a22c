# SPDX-License-Identifier: Apache-2.0
"""Texts of prompts to token ids, without tokenising megabytes that cannot fit; and to jobs."""

from __future__ import annotations

from typing import Any

from rtp_llm.sampling_params import SamplingParams
from rtp_llm.server.errors import bad_request
from rtp_llm.server.openai.protocol import SamplingFields
from rtp_llm.server.prepare.jobs import Job
from rtp_llm.server.prepare.sampling import Lengths, Limits, stop_regex
from rtp_llm.server.prepare.served_model import ServedModel
from rtp_llm.text.tokenizer import Tokenizer

# Characters per token of the context: of a text more than twice as long the beginning is looked
# at first.
MANY_CHARACTERS = (4, 16)
# Of a text that is truncated, so many characters per token of the context are looked at: no token
# is longer.
LONG_TOKEN = 128
# Cutting a text changes the tokens at the border only.
BORDER_TOKENS = 64


def encode_prompt(
    text: str,
    request: SamplingFields,
    model: ServedModel,
    lengths: Lengths,
    add_special_tokens: bool,
) -> tuple[list[int], bool]:
    """The ids of a prompt, and whether all of them are there; raises ApiError.

    `truncate_prompt_tokens` keeps the last or first of them; a text that it leaves little of is cut
    first.
    """
    keep, limit = request.truncate_prompt_tokens, model.limits.max_model_len
    if keep is None:
        _check_length(model.tokenizer, text, limit, lengths.prompt_name)
    else:
        size = LONG_TOKEN * limit
        text = text[:size] if request.truncation_side == "right" else text[-size:]
    ids = model.tokenizer.encode(text, add_special_tokens)
    kept = lengths.truncate(ids, request, model.limits)
    return kept, keep is None or len(kept) == len(ids)


def check_size(
    num_prompts: int, request: SamplingFields, model: ServedModel, param: str = "prompt"
) -> None:
    """A request that no empty server could take is a bad one, not one to try again.

    Looked at before anything is tokenised, which takes long for very many prompts. `param`: the
    field that holds them.
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
    """A job with what the request says of its text; `fields`: the others of Job."""
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


def _check_length(tokenizer: Tokenizer, text: str, limit: int, param: str) -> None:
    """Refuse a text that is far too long by its beginning, before megabytes are tokenised.

    A token rarely has so many characters; where it has, the whole text is tokenised after all.
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
