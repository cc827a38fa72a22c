"""What a request must fit into before it is queued."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rtp_llm.engine.messages import INDEX_BITS, MAX_REQUEST_ID, AddRequest, RequestError
from rtp_llm.engine.seeds import SeedSource
from rtp_llm.native import load_runtime
from rtp_llm.sampling_params import SamplingParams, check_token_fields, check_vocabulary
from rtp_llm.worker.heads.sampling_flags import NEEDS_HISTORY, sampling_flags
from rtp_llm.worker.new_sequences import NewSequences

if TYPE_CHECKING:
    from rtp_llm._runtime import Scheduler
    from rtp_llm.worker.heads.logits_processor import LogitsProcessor
    from rtp_llm.worker.speculative.proposer import Proposer
    from rtp_llm.worker.worker import Worker

_PROCESSORS_ELSEWHERE = (
    "logits_processors run in this process and the model in others: leave them out"
)


@dataclass(frozen=True)
class EngineLimits:
    """What a request must fit into, and the ids that end a sequence."""

    max_model_len: int
    vocab_size: int
    max_running: int
    max_queued: int
    eos_token_ids: tuple[int, ...]


class Admission:
    """Checks requests and queues them with the scheduler."""

    def __init__(
        self,
        scheduler: Scheduler,
        limits: EngineLimits,
        seed: int,
        worker: Worker,
        proposer: Proposer,
    ) -> None:
        """``seed`` is that of requests without one of their own."""
        self._scheduler, self.limits = scheduler, limits
        self._takes_processors = worker.in_process
        self._overlap = not proposer.needs_tokens
        self._seeds = SeedSource(seed)
        self._queue_full = load_runtime().QueueFullError

    def queue(
        self, request: AddRequest, processors: Sequence[LogitsProcessor], *, remote_prompt: bool
    ) -> NewSequences:
        """Queue the sequences of a request; ``remote_prompt``: see the scheduler's.

        Raises:
            RequestError: invalid (it can never run; says the numbers) or queue_full.
        """
        if processors and not self._takes_processors:
            raise RequestError("invalid", _PROCESSORS_ELSEWHERE)
        check_request(request, self.limits)
        params = request.params
        ids = [request.request_id << INDEX_BITS | index for index in range(params.n)]
        prompt = np.array(request.prompt_token_ids, np.int32)
        eos, flags = self._end_ids(params), sampling_flags(params, bool(processors))
        max_tokens = params.max_tokens or self.limits.max_model_len - len(prompt)
        try:
            slots: list[int] = self._scheduler.add(
                ids,
                prompt,
                max_tokens=max_tokens,
                min_tokens=min(params.min_tokens, max_tokens),
                eos_token_ids=eos,
                stop_token_ids=list(params.stop_token_ids),
                priority=params.priority,
                extra_key=request.extra_key.encode(),
                sampling_flags=flags,
                needs_history=bool(flags & NEEDS_HISTORY),
                use_prefix_cache=params.prompt_logprobs is None and not request.pooling,
                remote_prompt=remote_prompt,
                overlap=self._overlap,
                tenant=request.tenant,
                tenant_weight=request.tenant_weight,
            )
        except (self._queue_full, ValueError) as error:
            invalid = isinstance(error, ValueError)
            raise RequestError("invalid" if invalid else "queue_full", str(error)) from error
        seeds, pooling = self._seeds.seeds_for(params.seed, params.n), bool(request.pooling)
        stop_ids = [*eos, *params.stop_token_ids]
        return NewSequences(ids, slots, seeds, prompt, params, stop_ids, processors, pooling)

    def _end_ids(self, params: SamplingParams) -> list[int]:
        return [] if params.ignore_eos else list(self.limits.eos_token_ids)


def check_request(request: AddRequest, limits: EngineLimits) -> None:
    """Raise RequestError for a request that could never run, or that names unknown tokens."""
    prompt, params = request.prompt_token_ids, request.params
    max_tokens = params.max_tokens or 1
    total = len(prompt) + max_tokens
    problem = None
    if not 0 <= request.request_id <= MAX_REQUEST_ID:
        problem = f"request_id={request.request_id} is out of range"
    elif request.pooling and params.n > 1:
        problem = f"pooling={request.pooling} gives one vector for n={params.n} sequences: set n=1"
    elif not prompt:
        problem = "the prompt has no tokens"
    elif total > limits.max_model_len:
        problem = (
            f"a prompt of {len(prompt)} tokens and max_tokens={max_tokens} make {total} "
            f"tokens, more than the longest sequence of {limits.max_model_len}"
        )
    if problem:
        raise RequestError("invalid", problem)
    try:
        check_vocabulary("prompt", prompt, limits.vocab_size)
        check_token_fields(params, limits.vocab_size)
    except ValueError as error:
        raise RequestError("invalid", str(error)) from error
