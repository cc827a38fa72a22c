"""The runtime's result arrays as the columns of a message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rtp_llm.engine.messages import INDEX_BITS, INDEX_MASK, LogprobColumns, StepOutput

if TYPE_CHECKING:
    from rtp_llm._runtime import Result
    from rtp_llm.executor.sampler import Logprobs


def step_columns(
    result: Result,
    logprobs: Logprobs | None,
    *,
    num_sequences: int,
    batch_tokens: int,
    seconds: float,
) -> StepOutput:
    """The message of a step; the arrays of ``result`` are copied into it."""
    ids = result.ids
    return StepOutput(
        num_rows=len(ids),
        request_ids=(ids >> INDEX_BITS).tobytes(),
        indexes=(ids & INDEX_MASK).astype(np.int32).tobytes(),
        tokens=result.tokens.tobytes(),
        num_tokens=result.num_tokens.tobytes(),
        finish=result.finish.tobytes(),
        cached_tokens=result.cached_tokens.tobytes(),
        logprobs=None if logprobs is None else _logprob_columns(logprobs),
        num_sequences=num_sequences,
        batch_tokens=batch_tokens,
        seconds=seconds,
    )


def _logprob_columns(logprobs: Logprobs) -> LogprobColumns:
    return LogprobColumns(
        rows=logprobs.rows.tobytes(),
        wanted=logprobs.wanted.tobytes(),
        chosen=logprobs.chosen.tobytes(),
        top_ids=logprobs.ids.tobytes(),
        top_values=logprobs.values.tobytes(),
        width=logprobs.values.shape[1],
    )
