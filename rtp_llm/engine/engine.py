"""The engine: one step is schedule, launch, commit. Token ids in, columns out.

Where the device works on while the host goes on, the next step is scheduled and launched before the
tokens of this one are read: they reach it on the device, and only their values arrive late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from rtp_llm.engine.columns import error_columns, step_columns
from rtp_llm.engine.messages import (
    FINISH_NAN,
    INDEX_BITS,
    INDEX_MASK,
    MAX_REQUEST_ID,
    AddRequest,
    EngineDeadError,
    EngineStats,
    PromptLogprobs,
    RequestError,
    StepOutput,
)
from rtp_llm.engine.prompt_logprobs import PromptPart, PromptScorer
from rtp_llm.engine.step_metrics import StepMetrics
from rtp_llm.native import load_runtime
from rtp_llm.sampling_params import check_token_fields, check_vocabulary
from rtp_llm.worker.heads.sampling_flags import NEEDS_HISTORY, PROCESSORS, sampling_flags

if TYPE_CHECKING:
    from rtp_llm._runtime import Scheduler
    from rtp_llm.engine.replicas.rank_steps import RankSteps
    from rtp_llm.worker.heads.logits_processor import LogitsProcessor
    from rtp_llm.worker.heads.sampler import Drawing, Sampled, Sampler
    from rtp_llm.worker.model_runner import ModelRunner

_NOTHING = np.empty(0, np.int32)


@dataclass(frozen=True)
class EngineLimits:
    """What a request must fit into, and the ids that end a sequence."""

    max_model_len: int
    vocab_size: int
    max_running: int
    max_queued: int
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True)
class _Flight:
    """A step that the device was given and whose tokens are not committed yet."""

    num_sequences: int
    batch_tokens: int
    flags: int
    scores: list[PromptPart]
    drawing: Drawing | None  # None: no prompt comes to its end in it


class Engine:
    """Continuous batching over one model. Not thread-safe, except for ``stats``.

    An exception inside a step leaves the scheduler between two states, so it ends the engine:
    ``step`` raises it, and every later call raises EngineDeadError. After KeyboardInterrupt the
    engine goes on once the sequences that were running are aborted.
    """

    # It waits for nothing but requests; see service_face.
    descriptors: Sequence[int] = ()
    patience: int | None = None

    def __init__(
        self,
        runner: ModelRunner,
        sampler: Sampler,
        scheduler: Scheduler,
        limits: EngineLimits,
        ranks: RankSteps | None = None,
    ) -> None:
        """``ranks``: how it steps together with engines that compute parts of its model."""
        self.limits = limits
        self.ranks = ranks
        self.runner = self._runner = runner
        self.sampler = self._sampler = sampler
        self.scheduler = self._scheduler = scheduler
        self.blocked = False
        """Nothing can run before a transfer to or from another worker ends; see ``step``."""
        self._queue_full = load_runtime().QueueFullError
        self._scorer = PromptScorer(runner, limits.vocab_size)
        self._processor_slots: dict[int, int] = {}
        self._overlap = runner.drawn is not None
        self._flight: _Flight | None = None
        self._interrupted = False
        self._failure: str | None = None
        self._figures = StepMetrics(scheduler)

    # -- requests ------------------------------------------------------------------------------

    def add(
        self,
        request: AddRequest,
        processors: Sequence[LogitsProcessor] = (),
        *,
        remote_prompt: bool = False,
    ) -> list[int]:
        """Queue a request; the slots of its sequences. ``remote_prompt``: see the scheduler's.

        Raises:
            RequestError: invalid (it can never run; says the numbers) or queue_full.
            EngineDeadError: a step failed before.
        """
        self._check_alive()
        check_request(request, self.limits)
        params = request.params
        first = request.request_id << INDEX_BITS
        ids = list(range(first, first + params.n))
        prompt = np.array(request.prompt_token_ids, np.int32)
        eos = [] if params.ignore_eos else list(self.limits.eos_token_ids)
        slots = self._schedule(request, ids, prompt, eos, bool(processors), remote_prompt)
        self._figures.prompt_tokens += len(prompt)
        self._sampler.add(slots, params, [*eos, *params.stop_token_ids], processors)
        if params.prompt_logprobs is not None:
            self._scorer.add(ids, prompt, params.prompt_logprobs)
        if processors:
            self._processor_slots.update(zip(ids, slots, strict=True))
        return slots

    def _schedule(
        self,
        request: AddRequest,
        ids: list[int],
        prompt: np.ndarray[tuple[int], np.dtype[np.int32]],
        eos: list[int],
        has_processors: bool,
        remote_prompt: bool,
    ) -> list[int]:
        params = request.params
        flags = sampling_flags(params, has_processors)
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
                use_prefix_cache=params.prompt_logprobs is None,
                remote_prompt=remote_prompt,
            )
            return slots
        except self._queue_full as error:
            raise RequestError("queue_full", str(error)) from error
        except ValueError as error:
            raise RequestError("invalid", str(error)) from error

    def abort(self, sequences: Sequence[tuple[int, int]]) -> None:
        """Stop sequences, (request_id, index) each, at any state; unknown ones are ignored."""
        self._check_alive()
        ids = [request << INDEX_BITS | index for request, index in sequences]
        self._scheduler.abort(ids)
        for each in ids:
            self._scorer.remove(each)
            if each in self._processor_slots:
                self._sampler.release([self._processor_slots.pop(each)])
        self._figures.refresh()

    def let_go(self, sequence: int) -> None:
        """Nothing reads or writes the blocks any more that were held for a transfer."""
        self._scheduler.let_go(sequence)
        self.blocked = False  # what waited for these blocks may run
        self._figures.refresh()

    def compute_here(self, sequence: int) -> None:
        """The prompt that was to come from another worker is computed after all, in its turn."""
        self._scheduler.compute_here(sequence)
        self.blocked = False  # there is something to compute

    @property
    def has_work(self) -> bool:
        """Some sequence is waiting or running, here or on another rank that this one must step
        with, or the outputs of a step are still to come."""
        awake = self.ranks is not None and self.ranks.awake
        return self._scheduler.has_work or self._flight is not None or awake

    @property
    def can_go_on(self) -> bool:
        """A step has something to do now."""
        return self.has_work and not self.blocked

    @property
    def has_idle_work(self) -> bool:
        """There is something to do for when no sequence is there: `work_idle`, again and again."""
        return self.ranks is None and self._runner.has_idle_work  # ranks do theirs in steps

    def work_idle(self) -> None:
        """Do a part of it, as long as a request may wait for."""
        self._runner.work_idle()

    @property
    def alive(self) -> bool:
        """No step has failed."""
        return self._failure is None

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise EngineDeadError(self._failure)

    # -- a step --------------------------------------------------------------------------------

    def step(self) -> list[StepOutput | PromptLogprobs]:
        """Finish one step; what it produced, the step's own columns last. Empty without work.

        Where steps overlap, the next one is on the device when this returns. Empty and ``blocked``
        when everything that is left waits for other workers.

        Raises:
            Exception: whatever failed in the step; the engine is dead then.
        """
        self._check_alive()
        if not self.has_work:
            return []
        try:
            with self._figures.timed(), torch.inference_mode():
                outputs = self._step()
        except Exception as error:
            self._failure = f"a step failed: {type(error).__name__}: {error}"
            raise
        except KeyboardInterrupt:
            self._interrupted = True
            raise
        if not self._scheduler.has_work:
            self._figures.refresh()
        return outputs

    def _step(self) -> list[StepOutput | PromptLogprobs]:
        if self._interrupted:
            self._forget_flights()
            if not self.has_work:
                return []
        flight = self._flight or self._launch()
        if flight is None and self._only_took_part():
            return []
        self.blocked = flight is None
        if flight is None:
            state = self._scheduler.stats()
            if not state["receiving"] and not state["held"]:
                raise RuntimeError(f"the scheduler cannot go on: {state}")
            return []
        # The device gets its next work before anybody waits for what it does now.
        self._flight = self._launch() if self._may_overlap(flight) else None
        return self._land(flight)

    def _only_took_part(self) -> bool:
        """Nothing of this rank was to be computed, or the ranks part."""
        return self.ranks is not None and (self.ranks.stopped or not self._scheduler.has_work)

    def _may_overlap(self, flight: _Flight) -> bool:
        """Logits processors see the tokens, so those of their step must be known first."""
        return self._overlap and not flight.flags & PROCESSORS

    def _launch(self) -> _Flight | None:
        """Schedule a step and give it to the device; None if nothing can run now."""
        scheduled = self._scheduler.schedule()
        batch = self._scheduler.batch
        if self.ranks is not None:
            scheduled = self.ranks.begin(batch if scheduled else None, self._scheduler.has_work)
        if not scheduled:
            return None
        hidden = self._runner.forward(batch)
        scores = self._scorer.launch(hidden, batch)
        drawing = None
        if batch.num_rows:
            logits = self._runner.logits(hidden, batch.logit_rows)
            drawing = self._sampler.launch(logits, batch)
        if self.ranks is not None:
            self.ranks.end()
        return _Flight(batch.num_seqs, batch.num_tokens, batch.sampling_flags, scores, drawing)

    def _land(self, flight: _Flight) -> list[StepOutput | PromptLogprobs]:
        """Wait for a step's tokens and commit them."""
        sampled = flight.drawing.read() if flight.drawing else None
        self._commit(sampled)
        columns = step_columns(
            self._scheduler.result,
            sampled.logprobs if sampled else None,
            num_sequences=flight.num_sequences,
            batch_tokens=flight.batch_tokens,
            seconds=self._figures.elapsed(),
        )
        scores, broken = self._scorer.land(flight.scores)
        return [*scores, *self._end_broken(broken), columns]

    def _end_broken(self, broken: dict[int, set[int]]) -> list[StepOutput]:
        """End the sequences of requests whose prompt log-probabilities do not exist."""
        outputs = []
        for request_id, ids in broken.items():
            indexes = sorted(each & INDEX_MASK for each in ids)
            self.abort([(request_id, index) for index in indexes])
            self._figures.broken += len(indexes)
            outputs.append(error_columns(request_id, indexes, FINISH_NAN))
        return outputs

    def _forget_flights(self) -> None:
        """Give up the steps that were interrupted: their rows are dead and get no token."""
        self._flight = None
        for rows in self._scheduler.uncommitted:
            self._scheduler.commit(np.full(rows, -1, np.int32))
        self._interrupted = False

    def _commit(self, sampled: Sampled | None) -> None:
        self._scheduler.commit(_NOTHING if sampled is None else sampled.tokens)
        result = self._scheduler.result
        self._figures.count(sampled, result)
        if self._processor_slots:
            finished = result.ids[np.flatnonzero(result.finish)].tolist()
            slots = [self._processor_slots.pop(each, -1) for each in finished]
            self._sampler.release([slot for slot in slots if slot >= 0])

    # -- figures -------------------------------------------------------------------------------

    def stats(self) -> EngineStats:
        """The latest figures; may be called from any thread, also while a step runs."""
        return self._figures.read()

    def check_integrity(self) -> None:
        """Raise when a block of the KV cache is lost or wrongly shared."""
        self._scheduler.check_integrity()


def check_request(request: AddRequest, limits: EngineLimits) -> None:
    """Raise RequestError for a request that could never run, or that names unknown tokens."""
    prompt, params = request.prompt_token_ids, request.params
    max_tokens = params.max_tokens or 1
    total = len(prompt) + max_tokens
    problem = None
    if not 0 <= request.request_id <= MAX_REQUEST_ID:
        problem = f"request_id={request.request_id} is out of range"
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
