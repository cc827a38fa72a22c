"""Which parts of sampling a request needs; the scheduler ORs the flags over the rows of a step."""

from __future__ import annotations

from rtp_llm.sampling_params import SamplingParams

# A step whose rows need nothing of these takes the arg max of each row and is done.
RANDOM = 1
PENALTIES = 2
NGRAM = 4
BIAS = 8
MIN_TOKENS = 16
LOGPROBS = 32
PROCESSORS = 64

MODIFYING = PENALTIES | NGRAM | BIAS | MIN_TOKENS | PROCESSORS
NEEDS_HISTORY = PENALTIES | NGRAM | PROCESSORS


def sampling_flags(params: SamplingParams, has_processors: bool = False) -> int:
    """The flags of one request."""
    penalties = (
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
    )
    wanted = {
        RANDOM: not params.greedy,
        PENALTIES: penalties,
        NGRAM: params.no_repeat_ngram_size > 0,
        BIAS: bool(params.logit_bias),
        MIN_TOKENS: params.min_tokens > 0,
        LOGPROBS: params.logprobs is not None,
        PROCESSORS: has_processors,
    }
    return sum(flag for flag, is_wanted in wanted.items() if is_wanted)
