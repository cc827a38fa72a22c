# SPDX-License-Identifier: Apache-2.0
"""The outputs of offline generation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from rtp_llm.engine.messages import FinishReason, TokenLogprob


@dataclass
class CompletionOutput:
    """One generated sequence.

    ``token_ids`` holds all sampled ones, a final end-of-sequence token included, which ``text``
    does not show. ``stop_reason`` is the stop string or stop token that ended it. With the
    ``finish_reason`` "error" it is "model_produced_nan" or "no_allowed_tokens", and the tokens are
    those that were sampled before.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    logprobs: list[TokenLogprob] | None = None

    @property
    def cumulative_logprob(self) -> float | None:
        """Sum of the tokens' log-probabilities, if they were requested."""
        return None if self.logprobs is None else sum(entry.logprob for entry in self.logprobs)

    def finished(self) -> bool:
        """Whether the sequence has ended."""
        return self.finish_reason is not None


@dataclass
class RequestMetrics:
    """When a request reached which point, in vLLM's names.

    ``arrival_time`` is a time of day (time.time()); the others are in seconds of a monotonic clock
    (time.monotonic()), of which only differences are meaningful; 0: not reached.
    """

    arrival_time: float = 0.0
    queued_ts: float = 0.0
    scheduled_ts: float = 0.0
    first_token_ts: float = 0.0
    last_token_ts: float = 0.0
    num_generation_tokens: int = 0

    @property
    def first_token_latency(self) -> float:
        """Seconds from the request to its first token."""
        return max(0.0, self.first_token_ts - self.queued_ts)


@dataclass
class RequestOutput:
    """A prompt and its ``n`` sequences. ``prompt`` is None when the prompt came as token ids."""

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[TokenLogprob | None] | None = None
    cached_tokens: int = 0
    request_id: str = field(default="", compare=False)
    metrics: RequestMetrics = field(default_factory=RequestMetrics, compare=False)

    @property
    def finished(self) -> bool:
        """Whether all sequences have ended; always true for what LLM returns."""
        return all(output.finished() for output in self.outputs)

    @property
    def num_cached_tokens(self) -> int:
        """vLLM's name for ``cached_tokens``."""
        return self.cached_tokens


@dataclass
class PoolingOutput:
    """What is pooled of a prompt: float32 numbers [width], or [tokens, width]."""

    data: NDArray[np.float32]


@dataclass
class EmbeddingOutput:
    """The vector of a prompt."""

    embedding: list[float] = field(default_factory=list)

    @property
    def hidden_size(self) -> int:
        """Numbers in the vector."""
        return len(self.embedding)


@dataclass
class ClassificationOutput:
    """The probabilities of a prompt's labels."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        """The number of labels."""
        return len(self.probs)


@dataclass
class ScoringOutput:
    """The score of a document."""

    score: float


@dataclass
class RankedDocument:
    """A document; ``index``: its place among those that were given."""

    index: int
    relevance_score: float
    document: str


Out = TypeVar("Out")
R = TypeVar("R")


@dataclass
class PooledRequestOutput(Generic[Out]):
    """A prompt and what was pooled of it. ``prompt`` is None when it came as token ids."""

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: Out
    request_id: str = field(default="", compare=False)
    num_cached_tokens: int = field(default=0, compare=False)
    finished: bool = False

    def converted(self, kind: Callable[..., R], outputs: object) -> R:
        """The same of another ``kind``, with its ``outputs``."""
        return kind(
            self.prompt,
            self.prompt_token_ids,
            outputs,
            self.request_id,
            self.num_cached_tokens,
            self.finished,
        )


class PoolingRequestOutput(PooledRequestOutput[PoolingOutput]):
    """What LLM.encode and LLM.reward return."""


class EmbeddingRequestOutput(PooledRequestOutput[EmbeddingOutput]):
    """What LLM.embed returns."""


class ClassificationRequestOutput(PooledRequestOutput[ClassificationOutput]):
    """What LLM.classify returns."""


class ScoringRequestOutput(PooledRequestOutput[ScoringOutput]):
    """What LLM.score returns; the prompt is the document."""
