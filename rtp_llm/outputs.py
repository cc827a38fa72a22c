"""What offline generation gives back."""

from __future__ import annotations

from dataclasses import dataclass, field

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
        """Sum of the tokens' log-probabilities, when they were asked for."""
        return None if self.logprobs is None else sum(entry.logprob for entry in self.logprobs)


@dataclass
class RequestOutput:
    """A prompt and its ``n`` sequences. ``prompt`` is None when the prompt came as token ids."""

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[TokenLogprob | None] | None = None
    cached_tokens: int = 0
