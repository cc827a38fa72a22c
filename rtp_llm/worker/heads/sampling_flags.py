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
    words = params.bad_words_token_ids
    wanted = {
        RANDOM: not params.greedy,
        PENALTIES: penalties,
        NGRAM: params.no_repeat_ngram_size > 0,
        BIAS: bool(params.logit_bias) or any(len(word) == 1 for word in words),
        MIN_TOKENS: params.min_tokens > 0,
        LOGPROBS: params.logprobs is not None or bool(params.logprob_token_ids),
        PROCESSORS: has_processors,
        ALLOWED: params.allowed_token_ids is not None,
        BAD_WORDS: any(len(word) > 1 for word in words),
        CONSTRAINED: constrained,
        TYPICAL: params.typical_p < 1.0 and not params.greedy,
        BEAMS: beam_search,
    }
    return sum(flag for flag, is_wanted in wanted.items() if is_wanted)
