# SPDX-License-Identifier: Apache-2.0
"""The interface between the engine, which decides what a step computes, and what computes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from rtp_llm.worker.forked_sequences import ForkedSequences
from rtp_llm.worker.new_sequences import NewSequences
from rtp_llm.worker.plan.step_plan import StepPlan

if TYPE_CHECKING:
    from rtp_llm.worker.heads.prompt_outputs import PromptOutput
    from rtp_llm.worker.heads.sample_handle import Sampled
    from rtp_llm.worker.kv_connector import WorkerConnector


@dataclass(frozen=True)
class StepOutputs:
    """What a step of so many sequences and tokens gave.

    ``prompts``: of prompts, what requests asked for. ``broken``: sequences where that has NaN or
    infinity, each set those of one request.
    """

    num_seqs: int
    num_tokens: int
    sampled: Sampled | None = None
    prompts: Sequence[PromptOutput] = ()
    broken: Sequence[frozenset[int]] = ()

    @property
    def tokens(self) -> NDArray[np.int32]:
        """int32 [O] or [O, K] as the scheduler's ``commit`` takes them."""
        return np.empty(0, np.int32) if self.sampled is None else self.sampled.tokens

    @property
    def row_tokens(self) -> NDArray[np.int32]:
        """The tokens of all rows, int32 [R], as the next step names them."""
        return np.empty(0, np.int32) if self.sampled is None else self.sampled.row_tokens


class StepHandle(Protocol):
    """A step that was submitted and whose outputs are not read yet."""

    def sample(self, previous: NDArray[np.int32] | None) -> None:
        """Give it the row tokens of the step before, [R'] (None: it names none of them).

        Called once, before the plan's arrays change. Most steps find those tokens on the device and
        ignore this; what the host edits between the layers and the sampling waits for it, while
        the device computes the layers.
        """

    def read(self) -> StepOutputs:
        """The outputs, once; waits for the device."""


class Worker(ABC):
    """Executes plans with one model, in order. Belongs to the engine's thread.

    ``connector`` may be set: the worker side of a KV connector, on this rank.
    """

    connector: WorkerConnector | None = None

    @property
    @abstractmethod
    def overlaps(self) -> bool:
        """A plan may name tokens of the one before, which nobody has read yet."""

    @property
    def orders_beams(self) -> bool:
        """Plans may name tokens that beams have chosen, with the block tables from before the
        choice. Where steps overlap."""
        return False

    @property
    def in_flight(self) -> int:
        """Steps that are executed before the first of them is sampled; plans name no token then
        that is not read. Those of a pipeline; 1: there is none."""
        return 1

    @property
    def keeps_sequences(self) -> bool:
        """It wants to hear of every sequence that ends."""
        return False

    @abstractmethod
    def add(self, sequences: NewSequences) -> None:
        """Sequences that the plans from now on may name."""

    @abstractmethod
    def fork(self, forked: ForkedSequences) -> None:
        """Sequences that continue another one, which is there; plans from now on may name them."""

    @abstractmethod
    def end(self, ids: Iterable[int], *, aborted: bool) -> None:
        """Sequences that no later plan names; ``aborted``: what they were to give is unwanted too.

        Unless `keeps_sequences`, it need not be told of sequences without logits processors that
        come to their end.
        """

    @abstractmethod
    def execute(self, plan: StepPlan | None, *, more: bool = False) -> StepHandle | None:
        """Begin a step; waits for nothing that the device computes.

        None for ``plan``: there is nothing to compute, but other workers may have something for
        this one; ``more``: sequences are open all the same. None is returned where nothing was
        begun.
        """

    def release_plan(self) -> None:
        """Wait until the arrays of the plan that was executed last may change."""
        return

    # -- prompts that another engine's worker computed -------------------------------------------

    def takes_draft_state(self, state: bytes) -> bool:
        """Whether drafts can go on from ``state``, which another engine's worker sent."""
        return not state

    def receive(self, sequence: int, slot: int, token: int, draft_state: bytes) -> None:
        """Continue a sequence whose prompt is in the KV cache; ``token`` is the first one after it.
        Its drafts continue from ``draft_state``, which `takes_draft_state` has accepted."""
        return

    # -- between requests ----------------------------------------------------------------------

    @property
    def has_idle_work(self) -> bool:
        """There is something to do for when no sequence is there: `work_idle`, again and again."""
        return False

    def work_idle(self) -> None:
        """Do a part of it, as long as a request may wait for."""
        return

    # -- workers that step together ------------------------------------------------------------

    def step_with_others(self, tokens: int, *, computes: bool) -> None:
        """All engines that share experts step, with at most ``tokens`` each; this one ``computes``
        a plan, which follows, or only has experts for the others."""
        return

    @property
    def awake(self) -> bool:
        """`execute` must be called, with or without a plan: another worker may need this one."""
        return False

    @property
    def stopped(self) -> bool:
        """A worker that this one steps with has left: nothing is computed any more."""
        return False
