# SPDX-License-Identifier: Apache-2.0
"""The outputs of `LLM.beam_search`, in vLLM's form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rtp_llm.engine.messages import (
    ERROR_MESSAGES,
    FinishReason,
    RequestError,
    SequenceError,
    TokenLogprob,
)
from rtp_llm.offline.outputs import CompletionOutput, RequestOutput
from rtp_llm.request.beam_search import BeamSearch, BeamSearchParams
from rtp_llm.request.sampling_params import SamplingParams

if TYPE_CHECKING:
    from rtp_llm.text.tokenizer import Tokenizer


# Fields that mean the same when tokens are sampled.
_SAME = sorted({*BeamSearchParams.__struct_fields__} & {*SamplingParams.__struct_fields__} - {"n"})


@dataclass
class BeamSearchSequence:
    """One sequence. ``tokens`` and ``text`` begin with the prompt; ``logprobs`` are of the tokens
    after it, a stop token that is not given included, and ``cum_logprob`` is their sum. A stop
    string is not in the text unless that is asked for, but its tokens are given."""

    tokens: list[int]
    logprobs: list[TokenLogprob]
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


@dataclass
class BeamSearchOutput:
    """The best sequences of a prompt, the best one first."""

    sequences: list[BeamSearchSequence] = field(default_factory=list)


def sampling_of(params: BeamSearchParams) -> tuple[SamplingParams, BeamSearch]:
    """What a request asks for with these parameters."""
    same = {name: getattr(params, name) for name in _SAME}
    sampling = SamplingParams(n=params.beam_width, **same)
    return sampling, params.search()


def beam_search_output(
    found: RequestOutput, params: BeamSearchParams, tokenizer: Tokenizer
) -> BeamSearchOutput:
    """The output of a prompt. Raises RequestError if its logits have NaN or infinity."""
    prompt, missing = found.prompt_token_ids, "too_few_sequences"
    outputs = [each for each in found.outputs if each.stop_reason != missing]
    return BeamSearchOutput([_sequence(prompt, each, params, tokenizer) for each in outputs])


def _sequence(
    prompt: Sequence[int], found: CompletionOutput, params: BeamSearchParams, tokenizer: Tokenizer
) -> BeamSearchSequence:
    if found.finish_reason == "error":
        error: SequenceError = "model_produced_nan"
        raise RequestError(error, ERROR_MESSAGES[error])
    shown, stop = params.include_stop_str_in_output, found.stop_reason
    hidden = found.finish_reason == "stop" and not isinstance(stop, str) and not shown
    tokens = [*prompt, *(found.token_ids[:-1] if hidden else found.token_ids)]
    text = tokenizer.decode(tokens)
    if isinstance(stop, str) and stop in text:
        text = text[: text.rindex(stop) + (len(stop) if shown else 0)]
    logprobs = found.logprobs or []
    return BeamSearchSequence(
        tokens=tokens,
        logprobs=logprobs,
        cum_logprob=sum(each.logprob for each in logprobs),
        text=text,
        finish_reason=found.finish_reason,
        stop_reason=found.stop_reason,
    )
