# SPDX-License-Identifier: Apache-2.0
"""The runtime's result arrays as the columns of a message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rtp_llm.engine.messages import (
    FINISH_EOS,
    FINISH_LENGTH,
    FINISH_NO_BEAM,
    INDEX_BITS,
    INDEX_MASK,
    LogprobColumns,
    PoolColumns,
    PromptLogprobs,
    StepOutput,
    TokenLogprob,
)
from rtp_llm.worker.heads.prompt_outputs import Pooled, PromptScores

if TYPE_CHECKING:
    from rtp_llm._runtime import Result
    from rtp_llm.engine.beams.beam_group import Hypothesis
    from rtp_llm.worker.heads.prompt_outputs import PromptOutput
    from rtp_llm.worker.heads.sample_handle import Logprobs
    from rtp_llm.worker.worker import StepOutputs


def step_columns(result: Result, outputs: StepOutputs, seconds: float) -> StepOutput:
    """The message of a step; the arrays of ``result`` are copied into it."""
    ids = result.ids
    sampled = outputs.sampled
    logprobs = sampled.logprobs if sampled else None
    verified = sampled is not None and sampled.accepted is not None
    return StepOutput(
        num_rows=len(ids),
        request_ids=(ids >> INDEX_BITS).tobytes(),
        indexes=(ids & INDEX_MASK).astype(np.int32).tobytes(),
        tokens=result.tokens.tobytes(),
        num_tokens=result.num_tokens.tobytes(),
        finish=result.finish.tobytes(),
        cached_tokens=result.cached_tokens.tobytes(),
        queue_seconds=result.queue_seconds.tobytes(),
        num_drafts=result.num_drafts.tobytes() if verified else b"",
        logprobs=None if logprobs is None else _logprob_columns(logprobs),
        pooled=_pool_columns(outputs.prompts) if outputs.prompts else None,
        num_sequences=outputs.num_seqs,
        batch_tokens=outputs.num_tokens,
        seconds=seconds,
    )


def _logprob_columns(logprobs: Logprobs) -> LogprobColumns:
    return LogprobColumns(
        places=logprobs.places.tobytes(),
        wanted=logprobs.wanted.tobytes(),
        chosen=logprobs.chosen.tobytes(),
        top_ids=logprobs.ids.tobytes(),
        top_values=logprobs.values.tobytes(),
        width=logprobs.values.shape[1],
    )


def _pool_columns(prompts: Sequence[PromptOutput]) -> PoolColumns | None:
    pooled = [each for each in prompts if isinstance(each, Pooled)]
    if not pooled:
        return None
    requests = [each.sequence >> INDEX_BITS for each in pooled]
    return PoolColumns(
        request_ids=np.array(requests, np.int64).tobytes(),
        sizes=np.array([each.values.size for each in pooled], np.int32).tobytes(),
        values=b"".join(each.values.tobytes() for each in pooled),
    )


def prompt_logprobs(prompts: Sequence[PromptOutput]) -> list[PromptLogprobs]:
    """The messages of scores among what a step gave of prompts."""
    return [_score_columns(each) for each in prompts if isinstance(each, PromptScores)]


def _score_columns(scores: PromptScores) -> PromptLogprobs:
    """The message of a part of a prompt's log-probabilities."""
    return PromptLogprobs(
        request_id=scores.sequence >> INDEX_BITS,
        start=scores.start,
        token_ids=scores.ids.tobytes(),
        chosen=scores.chosen.tobytes(),
        top_ids=scores.top_ids.tobytes(),
        top_values=scores.values.tobytes(),
        ranks=scores.ranks.tobytes(),
        width=scores.values.shape[1],
    )


def first_token_columns(
    request_id: int,
    token: int,
    *,
    finish: int,
    cached_tokens: int,
    logprobs: TokenLogprob | None,
) -> StepOutput:
    """The message of a token sampled by another worker, the first of a request's only sequence."""
    return StepOutput(
        num_rows=1,
        request_ids=np.array([request_id], np.int64).tobytes(),
        indexes=np.zeros(1, np.int32).tobytes(),
        tokens=np.array([token], np.int32).tobytes(),
        num_tokens=np.ones(1, np.int32).tobytes(),
        finish=bytes([finish]),
        cached_tokens=np.array([cached_tokens], np.int32).tobytes(),
        logprobs=None if logprobs is None else _one_logprob(logprobs),
    )


def error_columns(sequences: Sequence[int], finish: int) -> StepOutput:
    """The message that sequences have ended with an error, outside of a step."""
    count = len(sequences)
    ids = np.array(sequences, np.int64)
    return StepOutput(
        num_rows=count,
        request_ids=(ids >> INDEX_BITS).tobytes(),
        indexes=(ids & INDEX_MASK).astype(np.int32).tobytes(),
        tokens=np.full(count, -1, np.int32).tobytes(),
        num_tokens=np.zeros(count, np.int32).tobytes(),
        finish=bytes([finish]) * count,
        cached_tokens=np.zeros(count, np.int32).tobytes(),
    )


def beam_columns(
    request_id: int, count: int, hypotheses: Sequence[Hypothesis], cached_tokens: int
) -> StepOutput:
    """The message that a beam search over ``count`` sequences has ended: the first ones come as a
    whole, the best one first, and the others have no tokens."""
    lengths = [len(each.tokens) for each in hypotheses]
    none = count - len(lengths)
    tokens = np.full((count, max(lengths, default=0)), -1, np.int32)
    for row, each in enumerate(hypotheses):
        tokens[row, : lengths[row]] = each.tokens
    total, tops = sum(lengths), [each.top for each in hypotheses if each.top is not None]
    wanted = tops[0].ids.shape[1] if tops else 0
    logprobs = LogprobColumns(
        places=np.flatnonzero(tokens >= 0).astype(np.int32).tobytes(),
        wanted=np.full(total, wanted, np.int32).tobytes(),
        chosen=b"".join(each.logprobs.tobytes() for each in hypotheses),
        top_ids=b"".join(each.ids.tobytes() for each in tops) or bytes(4 * total),
        top_values=b"".join(each.values.tobytes() for each in tops) or bytes(4 * total),
        width=max(1, wanted),
    )
    ends = [FINISH_EOS if each.stopped else FINISH_LENGTH for each in hypotheses]
    ends += [FINISH_NO_BEAM] * none
    return StepOutput(
        num_rows=count,
        request_ids=np.full(count, request_id, np.int64).tobytes(),
        indexes=np.arange(count, dtype=np.int32).tobytes(),
        tokens=tokens.tobytes(),
        num_tokens=np.array([*lengths, *[0] * none], np.int32).tobytes(),
        finish=bytes(ends),
        cached_tokens=np.full(count, cached_tokens, np.int32).tobytes(),
        logprobs=logprobs,
    )


def _one_logprob(logprob: TokenLogprob) -> LogprobColumns:
    # A width of at least one, as in the columns of a step.
    top = logprob.top or [(0, 0.0)]
    return LogprobColumns(
        places=np.zeros(1, np.int32).tobytes(),
        wanted=np.array([len(logprob.top)], np.int32).tobytes(),
        chosen=np.array([logprob.logprob], np.float32).tobytes(),
        top_ids=np.array([token for token, _ in top], np.int32).tobytes(),
        top_values=np.array([value for _, value in top], np.float32).tobytes(),
        width=len(top),
    )
