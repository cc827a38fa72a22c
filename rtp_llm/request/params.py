# SPDX-License-Identifier: Apache-2.0
"""What a request asks for: sampled tokens, scores of its prompt, or a vector or labels for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, TypeAlias, get_args

import msgspec

from rtp_llm.config.tasks import Task
from rtp_llm.request.sampling_params import MAX_PRIORITY, SamplingParams

PoolingType = Literal["last", "mean", "cls", "max", "weightedmean", "all"]
# Those that make one row of a prompt's states.
POOLING_TYPES: tuple[PoolingType, ...] = ("last", "mean", "cls", "max", "weightedmean")
PoolingTask = Literal["embed", "score", "classify", "token_classify", "reward"]
POOLING_TASKS: tuple[PoolingTask, ...] = get_args(PoolingTask)
_KNOWN_VALUES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    ("task", POOLING_TASKS),
    ("pooling_type", (None, *get_args(PoolingType))),
)


class ScoringParams(msgspec.Struct, tag="score", frozen=True, kw_only=True):
    """Log-probabilities of the prompt's tokens, ``prompt_logprobs`` top values each (-1: all of the
    vocabulary); no token is sampled. ``priority`` as that of SamplingParams."""

    prompt_logprobs: int
    priority: int = 0

    n: ClassVar[int] = 1
    logprobs: ClassVar[None] = None


class PoolingParams(msgspec.Struct, tag="pool", frozen=True, kw_only=True):
    """A vector, scores or labels for the prompt, from its hidden states after the last norm; no
    token is sampled.

    ``task`` is what they are for: "embed", "score" (one number), "classify" (a number for each
    label), "token_classify" (the same for each token), or "reward", which are scores as the model
    gives them. ``pooling_type``: the state of the "last" token, the "mean" of all of them in
    float32, that of the first token ("cls"), the "max" of all of them in each channel,
    "weightedmean", where the n-th token counts n times, or "all" of them one by one.
    ``normalize``: to length 1, of embeddings. ``dimensions``: keep so many of an embedding's first
    numbers, where the model is made for that. ``use_activation``: turn scores into probabilities.
    None takes what the model's folder says. ``truncate_prompt_tokens`` and ``priority`` as those of
    SamplingParams.

    Raises:
        ValueError: names the field and what it may be.
    """

    task: PoolingTask = "embed"
    pooling_type: PoolingType | None = None
    normalize: bool | None = None
    dimensions: int | None = None
    use_activation: bool | None = None
    truncate_prompt_tokens: int | None = None
    priority: int = 0

    n: ClassVar[int] = 1
    logprobs: ClassVar[None] = None
    prompt_logprobs: ClassVar[None] = None

    def __post_init__(self) -> None:
        for name, known in _KNOWN_VALUES:
            if (value := getattr(self, name)) not in known:
                names = ", ".join(filter(None, known))
                raise ValueError(f"{name}={value!r} must be one of {names}")
        for name in ("normalize", "use_activation"):
            if (value := getattr(self, name)) not in (None, False, True):
                raise ValueError(f"{name}={value!r} must be True, False or None")
        if self.dimensions is not None and not 1 <= self.dimensions < 2**31:
            raise ValueError(f"dimensions={self.dimensions} must be at least 1")
        keep = self.truncate_prompt_tokens
        if keep is not None and keep != -1 and not 1 <= keep < 2**31:
            raise ValueError(f"truncate_prompt_tokens={keep} must be at least 1, or -1")
        if not -MAX_PRIORITY <= self.priority <= MAX_PRIORITY:
            most = MAX_PRIORITY
            raise ValueError(f"priority={self.priority} must be between {-most} and {most}")


RequestParams: TypeAlias = SamplingParams | ScoringParams | PoolingParams


def task_of(params: RequestParams) -> Task:
    """The task that a model must be served for to answer a request with these parameters."""
    return params.task if isinstance(params, PoolingParams) else "generate"


def dimensions_problem(size: int | None, most: int, known: Sequence[int] | None) -> str:
    """Why embeddings of ``most`` numbers cannot have the ``size`` that is asked for; empty if they
    can. ``known``: the sizes to which they may be cut; empty: any, None: none."""
    if size is None or (size == most and known is None):
        return ""
    if known is None:
        return (
            f"dimensions={size}: embeddings of this model have {most} numbers and are not made to "
            "be cut: config.json has neither is_matryoshka nor matryoshka_dimensions"
        )
    if known and size not in known:
        sizes = ", ".join(map(str, known))
        return f"dimensions={size}: embeddings of this model may have one of these sizes: {sizes}"
    return "" if size <= most else f"dimensions={size}: embeddings have {most} numbers"


def max_output(params: RequestParams, room: int) -> int:
    """How many tokens may be sampled after a prompt that leaves ``room`` for so many."""
    return params.max_tokens or room if isinstance(params, SamplingParams) else 0


def reads_whole_prompt(params: RequestParams) -> bool:
    """Whether states of all prompt tokens are needed, so that no prefix cache can serve them."""
    if isinstance(params, PoolingParams):
        return params.pooling_type != "last"
    return params.prompt_logprobs is not None
