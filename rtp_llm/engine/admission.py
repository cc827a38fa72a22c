# SPDX-License-Identifier: Apache-2.0
"""What a request must fit into before it is queued."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rtp_llm.config.tasks import wrong_task
from rtp_llm.engine.limits import EngineLimits
from rtp_llm.engine.messages import (
    INDEX_BITS,
    INDEX_MASK,
    MAX_REQUEST_ID,
    AddRequest,
    RequestError,
)
from rtp_llm.engine.prompt_inputs import check_inputs, scheduler_inputs
from rtp_llm.engine.seeds import SeedSource
from rtp_llm.native import load_runtime
from rtp_llm.request.params import (
    PoolingParams,
    RequestParams,
    dimensions_problem,
    reads_whole_prompt,
    task_of,
)
from rtp_llm.request.sampling_params import SamplingParams, check_token_fields, check_vocabulary
from rtp_llm.worker.forked_sequences import ForkedSequences
from rtp_llm.worker.heads.sampling_flags import NEEDS_HISTORY, sampling_flags
from rtp_llm.worker.new_sequences import NewSequences

if TYPE_CHECKING:
    from rtp_llm._runtime import Scheduler
    from rtp_llm.worker.grammar.constraint import Constraint
    from rtp_llm.worker.grammar.constraints import Constraints
    from rtp_llm.worker.heads.beam_table import BeamTable
    from rtp_llm.worker.heads.logits_processor import LogitsProcessor
    from rtp_llm.worker.speculative.proposer import Proposer

_NO_OUTPUT = "a request without sampled tokens has no grammar, thinking or logits processors"
_NO_MASKS = "grammar and thinking budget: this engine masks no logits: leave them out"


class Admission:
    """Checks requests and queues them with the scheduler."""

    def __init__(
        self,
        scheduler: Scheduler,
        limits: EngineLimits,
        seed: int,
        proposer: Proposer,
        constraints: Constraints | None,
        beams: BeamTable,
    ) -> None:
        """``seed`` is for requests without their own; ``constraints`` is None if the worker cannot
        mask logits; ``beams`` are those of searches that were added."""
        self._beams = beams
        self._scheduler, self.limits = scheduler, limits
        self._constraints, self._proposer = constraints, proposer
        self._seeds = SeedSource(seed)
        self._queue_full = load_runtime().QueueFullError
        # Given and completed. Prompts often share them, and new ones are checked when made.
        self._last_pooling: tuple[PoolingParams, PoolingParams] | None = None

    def check(self, request: AddRequest) -> None:
        """Raise RequestError, with the numbers, for a request that can never run."""
        check_request(request, self.limits)
        if is_constrained(request) and (problem := self._problem_of_constraint(request)):
            raise RequestError("invalid", problem)

    def seeds_for(self, request: AddRequest) -> list[int]:
        """The seeds of a request's sequences; call once for each accepted request."""
        if not isinstance(request.params, SamplingParams):
            return [0]
        return self._seeds.seeds_for(request.params.seed, request.params.n)

    def _problem_of_constraint(self, request: AddRequest) -> str | None:
        constraints, thinking = self._constraints, request.thinking
        if constraints is None:
            return _NO_MASKS
        if thinking is not None:
            ids = (*thinking.begin_ids, *thinking.end_ids)
            if not thinking.end_ids:
                return "thinking: it has no end_ids"
            if not all(0 <= each < self.limits.vocab_size for each in ids):
                return f"thinking: {list(ids)} are not all below {self.limits.vocab_size}"
        if request.grammar is None:
            return None
        if constraints.library is None:
            return f"grammar: {constraints.why_no_library}"
        if request.sampling.ignore_eos:
            return "grammar: the answer ends where its grammar does: leave ignore_eos out"
        return None

    def queue(
        self,
        request: AddRequest,
        processors: Sequence[LogitsProcessor],
        seeds: Sequence[int] | None,
    ) -> NewSequences:
        """Queue the sequences of a checked request, which may have its ``seeds`` already.

        Raises:
            RequestError: invalid (it can never run; says the numbers) or queue_full.
        """
        prompt = np.array(request.prompt_token_ids, np.int32)
        ids = [request.request_id << INDEX_BITS | index for index in range(request.params.n)]
        params, stop_ids = request.params, []
        if isinstance(params, SamplingParams):
            eos = [] if params.ignore_eos else list(self.limits.eos_token_ids)
            slots = self._slots(ids, prompt, request, eos, bool(processors))
            stop_ids = [*eos, *params.stop_token_ids]
        elif processors:
            raise RequestError("invalid", _NO_OUTPUT)
        else:
            if isinstance(params, PoolingParams):
                params = self._complete_pooling(params)
            slots = self._add(ids, prompt, request, params, max_tokens=1, prompt_only=True)
        return NewSequences(
            ids=ids,
            slots=slots,
            seeds=self.seeds_for(request) if seeds is None else seeds,
            prompt=prompt,
            params=params,
            stop_ids=stop_ids,
            processors=processors,
            constrained=is_constrained(request),
            beam_search=request.beam_search is not None,
            mm_features=request.mm_features,
            extra_key=request.extra_key,
        )

    def fork(
        self,
        source: int,
        ids: Sequence[int],
        last_tokens: Sequence[int],
        seeds: Sequence[int] | None,
    ) -> tuple[ForkedSequences, Sequence[Constraint]]:
        """Queue sequences ``ids`` that continue sequence ``source``, see Engine.fork; they and
        their constraints, if the source has one.

        Raises:
            RequestError: invalid or queue_full.
        """
        name = f"fork of request_id={source >> INDEX_BITS}, index={source & INDEX_MASK}"
        if seeds is not None and len(seeds) != len(ids):
            raise RequestError("invalid", f"{name}: {len(seeds)} seeds for {len(ids)} sequences")
        try:
            check_vocabulary("last_tokens", last_tokens, self.limits.vocab_size)
            source_slot, prompt_length, tokens = self._scheduler.tokens_of(source)
            last = last_tokens or tokens[-1:].tolist() * len(ids)
            constraints: Sequence[Constraint] = ()
            if self._constraints is not None and len(tokens) > prompt_length:
                output = tokens[prompt_length:].tolist()
                constraints = self._constraints.continuations(source, output, last)
            slots = self._scheduler.fork(source, ids, last_tokens=last_tokens)
        except (self._queue_full, ValueError) as error:
            raise _refusal(error, f"{name}: ") from error
        if seeds is None:
            seeds = self._seeds.seeds_for(None, len(ids))
        forked = ForkedSequences(source, source_slot, ids, slots, seeds, tokens, last)
        return forked, constraints

    def _complete_pooling(self, params: PoolingParams) -> PoolingParams:
        """With what the model's folder says where the request leaves it open."""
        if self._last_pooling is not None and self._last_pooling[0] == params:
            return self._last_pooling[1]
        own: dict[str, Any] = {}
        if params.task != "embed":
            activates = params.task != "reward"
            own = {"pooling_type": self.limits.scored, "use_activation": activates}
        elif (given := self.limits.pooling) is not None:
            own = {"pooling_type": given.pooling_type, "normalize": given.normalize}
        missing = {name: value for name, value in own.items() if getattr(params, name) is None}
        completed = msgspec.structs.replace(params, **missing)
        self._last_pooling = params, completed
        return completed

    def _slots(
        self,
        ids: list[int],
        prompt: NDArray[np.int32],
        request: AddRequest,
        eos: list[int],
        has_processors: bool,
    ) -> list[int]:
        """The slots that the scheduler assigned to the sequences."""
        params, limits, proposer = request.sampling, self.limits, self._proposer
        constrained = is_constrained(request)
        is_beam = request.beam_search is not None
        flags = sampling_flags(params, has_processors, constrained=constrained, beam_search=is_beam)
        waits = proposer.needs_tokens and (constrained or not proposer.constrained_only)
        max_tokens = params.max_tokens or limits.max_model_len - len(prompt)
        return self._add(
            ids,
            prompt,
            request,
            params,
            max_tokens=max_tokens,
            # A beam search ends its sequences itself.
            min_tokens=0 if is_beam else min(params.min_tokens, max_tokens),
            eos_token_ids=[] if is_beam else eos,
            stop_token_ids=[] if is_beam else list(params.stop_token_ids),
            sampling_flags=flags,
            needs_history=bool(flags & NEEDS_HISTORY),
            overlap=not waits and (not is_beam or self._beams.overlaps(ids[0])),
            beam_search=is_beam,
        )

    def _add(
        self,
        ids: list[int],
        prompt: NDArray[np.int32],
        request: AddRequest,
        params: RequestParams,
        **options: Any,
    ) -> list[int]:
        """Add sequences to the scheduler, with what all requests have and further ``options``."""
        try:
            slots: list[int] = self._scheduler.add(
                ids,
                prompt,
                priority=params.priority,
                extra_key=request.extra_key.encode(),
                use_prefix_cache=not reads_whole_prompt(params),
                tenant=request.tenant,
                tenant_weight=request.tenant_weight,
                **scheduler_inputs(request),
                second_text=request.second_text if self.limits.token_types else 0,
                **options,
            )
        except (self._queue_full, ValueError) as error:
            raise _refusal(error) from error
        return slots


def _refusal(error: Exception, place: str = "") -> RequestError:
    """How a request fails that the scheduler refuses: as invalid, or because its queue is full."""
    invalid = isinstance(error, ValueError)
    return RequestError("invalid" if invalid else "queue_full", f"{place}{error}")


def is_constrained(request: AddRequest) -> bool:
    """Whether masks limit what the request may sample."""
    thinking = request.thinking
    return request.grammar is not None or (thinking is not None and thinking.budget is not None)


def check_request(request: AddRequest, limits: EngineLimits) -> None:
    """Raise RequestError for a request that could never run, or that names unknown tokens."""
    prompt, params = request.prompt_token_ids, request.params
    sampled = isinstance(params, SamplingParams)
    max_tokens = (params.max_tokens or 1) if isinstance(params, SamplingParams) else 0
    total = len(prompt) + max_tokens
    problem = None
    if not 0 <= request.request_id <= MAX_REQUEST_ID:
        problem = f"request_id={request.request_id} is out of range"
    elif task_of(params) not in limits.tasks:
        problem = wrong_task(task_of(params), limits.tasks)
    elif not prompt:
        problem = "the prompt has no tokens"
    elif not sampled and (request.grammar is not None or request.thinking is not None):
        problem = _NO_OUTPUT
    elif isinstance(params, PoolingParams) and (
        found := dimensions_problem(params.dimensions, limits.vector_size, limits.matryoshka)
    ):
        problem = found
    elif total > limits.max_model_len and not sampled:
        problem = (
            f"a prompt of {len(prompt)} tokens is longer than the longest sequence of "
            f"{limits.max_model_len}"
        )
    elif total > limits.max_model_len:
        problem = (
            f"a prompt of {len(prompt)} tokens and max_tokens={max_tokens} make {total} "
            f"tokens, more than the longest sequence of {limits.max_model_len}"
        )
    if problem:
        raise RequestError("invalid", problem)
    try:
        check_vocabulary("prompt", prompt, limits.vocab_size)
        if isinstance(params, SamplingParams):
            check_token_fields(params, limits.vocab_size)
        check_inputs(request, limits)
    except ValueError as error:
        raise RequestError("invalid", str(error)) from error
