# SPDX-License-Identifier: Apache-2.0
"""Sampling: changes of logits, sampling tokens, log-probabilities. All batched over rows.

Before sampling, apply_token_bitmask, apply_penalties, ban_repeated_ngrams and add_logit_bias change
logits in place, in the order in which the caller calls them. Token ids outside the vocabulary are
ignored.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.declare import IndexTensor, MutableTensor, operator

# The status of a row; see ``sample``.
SAMPLED, NOT_FINITE, ALL_BANNED = range(3)
# The lowest log-probability, which also stands for excluded tokens.
LEAST_LOGPROB = -1e4


@operator
def apply_token_bitmask(logits: MutableTensor, masks: Tensor, rows: IndexTensor) -> None:
    """In place: set the logits of tokens that a row's bit mask excludes to -inf.

    logits float32 [R, V]; masks int32 [P, ceil(V / 32)], token t being bit t % 32 of word t / 32;
    rows int32 [P], the row of logits for each mask. RuntimeError on a mismatch and on a row outside
    [0, R).
    """


@operator
def apply_penalties(
    logits: MutableTensor,
    tokens: Tensor,
    cu_tokens: IndexTensor,
    output_lens: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> None:
    """In place: penalise the tokens of each row's history, a prompt followed by generated tokens.

    logits float32 [R, V]; tokens int32, row r's at [cu_tokens[r], cu_tokens[r + 1]); cu_tokens
    int32 [R + 1]; output_lens int64 [R], how many of them, at the end, were generated; repetition,
    presence, frequency float32 [R]. The logit l of every distinct token becomes l * repetition if
    negative and l / repetition otherwise; then generated tokens get l - presence - frequency *
    (number of occurrences). RuntimeError on a mismatch.
    """


@operator
def ban_repeated_ngrams(
    logits: MutableTensor, tokens: Tensor, cu_tokens: IndexTensor, ngram_size: Tensor
) -> None:
    """In place: set to -inf the logits of tokens that would repeat an n-gram of the row's history.

    logits float32 [R, V]; tokens and cu_tokens as for apply_penalties; ngram_size int32 [R], below
    1 = none. RuntimeError on a mismatch.
    """


@operator
def add_logit_bias(logits: MutableTensor, rows: IndexTensor, ids: Tensor, values: Tensor) -> None:
    """In place: logits[rows[i], ids[i]] += values[i]; repeated pairs add up, -inf bans.

    logits float32 [R, V]; rows and ids int32 [N]; values float32 [N]. RuntimeError on a mismatch
    and on a row outside [0, R).
    """


@operator
def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    steps: Tensor,
) -> tuple[Tensor, Tensor]:
    """Sample one token per row.

    logits float32 [R, V], not modified; temperature float32 [R], 0 = arg max; top_k int32 [R],
    below 1 = no limit; top_p float32 [R], 1 = all; min_p float32 [R], 0 = all; seeds int64 [R];
    steps int64 [R], the index of the token in its sequence.

    Order: temperature; the k most likely tokens; of those the smallest set with top_p of their
    mass, at least one; of those the ones with at least min_p of the best one's probability. Ties:
    the lowest index first. The remaining tokens are sampled by inverse transform over ascending
    indices, so that rounding differences of logits move no token's share by more than that
    rounding. One uniform number per row, Philox4x32-10 of (seed, step), so a row does not depend on
    its batch.

    Returns tokens int32 [R] and status int8 [R]: SAMPLED, NOT_FINITE (the row has NaN or +inf) or
    ALL_BANNED (every logit is -inf). In the last two cases the token is the arg max of the row's
    finite logits, or 0 if there are none. RuntimeError on a mismatch.
    """
    rows = logits.shape[0]
    return logits.new_empty(rows, dtype=torch.int32), logits.new_empty(rows, dtype=torch.int8)


@operator
def top_logprobs(logits: Tensor, tokens: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Log-softmax of each row at its token and at its k most likely tokens.

    logits float32 [R, V]; tokens int32 [R]; 0 <= k <= V. Logits that are not finite count as
    excluded. Returns chosen float32 [R], values float32 [R, k] descending (ties: lowest index
    first) and ids int32 [R, k]. Nothing is below -1e4, which also stands for excluded tokens and
    for ids outside the vocabulary. RuntimeError on a mismatch.
    """
    rows = logits.shape[0]
    return (
        logits.new_empty(rows),
        logits.new_empty((rows, k)),
        logits.new_empty((rows, k), dtype=torch.int32),
    )
