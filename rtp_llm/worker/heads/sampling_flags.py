# SPDX-License-Identifier: Apache-2.0
"""Which parts of sampling a request needs; the scheduler ORs the flags over the rows of a step."""

from __future__ import annotations

from rtp_llm.request.sampling_params import SamplingParams

# A step whose rows need nothing of these takes the arg max of each row and is done.
RANDOM = 1
PENALTIES = 2
NGRAM = 4
BIAS = 8
MIN_TOKENS = 16
LOGPROBS = 32
PROCESSORS = 64
ALLOWED = 128
BAD_WORDS = 256
CONSTRAINED = 512
TYPICAL = 1024
BEAMS = 2048

MODIFYING = (
    PENALTIES | NGRAM | BIAS | MIN_TOKENS | PROCESSORS | ALLOWED | BAD_WORDS | CONSTRAINED | TYPICAL
)
NEEDS_HISTORY = PENALTIES | NGRAM | PROCESSORS | BAD_WORDS
# The host edits logits by the tokens of the step before: the layers are begun without them.
LATE = PROCESSORS | CONSTRAINED


def sampling_flags(
    params: SamplingParams,
    has_processors: bool = False,
    *,
    constrained: bool = False,
    beam_search: bool = False,
) -> int:
    """The flags of one request."""
    penalties = (
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
    )
    greedy, lengths = params.greedy, {len(word) for word in params.bad_words_token_ids}
    biased = bool(params.logit_bias) or 1 in lengths
    return (
        RANDOM * (not greedy)
        | PENALTIES * penalties
        | NGRAM * (params.no_repeat_ngram_size > 0)
        | BIAS * biased
        | MIN_TOKENS * (params.min_tokens > 0)
        | LOGPROBS * (params.logprobs is not None or bool(params.logprob_token_ids))
        | PROCESSORS * has_processors
        | ALLOWED * (params.allowed_token_ids is not None)
        | BAD_WORDS * any(length > 1 for length in lengths)
        | CONSTRAINED * constrained
        | TYPICAL * (params.typical_p < 1.0 and not greedy)
        | BEAMS * beam_search
    )
