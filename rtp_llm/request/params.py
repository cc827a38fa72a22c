# SPDX-License-Identifier: Apache-2.0
"""What a request asks for: sampled tokens, scores of its prompt, or one vector for its prompt."""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias, get_args

import msgspec

from rtp_llm.config.tasks import Task
from rtp_llm.request.sampling_params import SamplingParams

PoolingType = Literal["last", "mean", "cls", "max", "weightedmean"]
POOLING_TYPES: tuple[PoolingType, ...] = get_args(PoolingType)


class ScoringParams(msgspec.Struct, tag="score", frozen=True, kw_only=True):
    """Log-probabilities of the prompt's tokens, ``prompt_logprobs`` top values each (-1: all of the
    vocabulary); no token is sampled. ``priority`` as that of SamplingParams."""

    prompt_logprobs: int
    priority: int = 0

    n: ClassVar[int] = 1
    logprobs: ClassVar[None] = None


class PoolingParams(msgspec.Struct, tag="pool", frozen=True, kw_only=True):
    """One vector for the prompt, from its hidden states after the last norm; no token is sampled.

    ``pooling_type``: the state of the "last" token, the "mean" of all of them in float32, that of
    the first token ("cls"), the "max" of all of them in each channel, or "weightedmean", where the
    n-th token counts n times. ``normalize``: to length 1. None takes what the model's folder says.
    ``dimensions``: keep so many of an embedding's first numbers, where the model is made for that.
    ``truncate_prompt_tokens`` and ``priority`` as those of SamplingParams.

    Raises:
        ValueError: names the field and what it may be.
    """

    pooling_type: PoolingType | None = None
    normalize: bool | None = None
    dimensions: int | None = None
    truncate_prompt_tokens: int | None = None
    priority: int = 0

    n: ClassVar[int] = 1
    logprobs: ClassVar[None] = None
    prompt_logprobs: ClassVar[None] = None

    def __post_init__(self) -> None:
        if self.pooling_type not in (None, *POOLING_TYPES):
            known = ", ".join(POOLING_TYPES)
            raise ValueError(f"pooling_type={self.pooling_type!r} must be one of {known}")
        if self.normalize not in (None, False, True):
            raise ValueError(f"normalize={self.normalize!r} must be True, False or None")
        if self.dimensions is not None and not 1 <= self.dimensions < 2**31:
            raise ValueError(f"dimensions={self.dimensions} must be at least 1")
        keep = self.truncate_prompt_tokens
        if keep is not None and keep != -1 and not 1 <= keep < 2**31:
            raise ValueError(f"truncate_prompt_tokens={keep} must be at least 1, or -1")


RequestParams: TypeAlias = SamplingParams | ScoringParams | PoolingParams


def task_of(params: RequestParams) -> Task:
    """The task that a model must be served for to answer a request with these parameters."""
    return "embed" if isinstance(params, PoolingParams) else "generate"


def max_output(params: RequestParams, room: int) -> int:
    """How many tokens may be sampled after a prompt that leaves ``room`` for so many."""
    return params.max_tokens or room if isinstance(params, SamplingParams) else 0


def reads_whole_prompt(params: RequestParams) -> bool:
    """Whether states of all prompt tokens are needed, so that no prefix cache can serve them."""
    if isinstance(params, PoolingParams):
        return params.pooling_type != "last"
    return params.prompt_logprobs is not None
