# SPDX-License-Identifier: Apache-2.0
"""How one rank's engine steps together with the others that hold parts of its model's experts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from rtp_llm.distributed.group import RankLostError

if TYPE_CHECKING:
    from rtp_llm.distributed.balancer import Balancer
    from rtp_llm.distributed.lockstep import Agreement, Lockstep
    from rtp_llm.distributed.world import World
    from rtp_llm.layers.moe.parallel import ParallelExperts
    from rtp_llm.worker.graphs.shared_graphs import SharedGraphs
    from rtp_llm.worker.plan.step_plan import StepPlan


class Notify(Protocol):
    """See Worker.step_with_others."""

    def __call__(self, tokens: int, *, computes: bool) -> None: ...


class RankSteps:
    """Around each step: agree with the other ranks, take part in theirs, balance experts.

    Every rank calls `begin` equally often. It waits for the slowest of them. `graphs`: steps that
    all ranks capture and replay together. `notify`, if set, is called before each step begins:
    the most tokens of any rank, and whether this one has some.
    """

    def __init__(
        self, world: World, lockstep: Lockstep, experts: ParallelExperts, balancer: Balancer
    ) -> None:
        self.stopped = False
        self.graphs: SharedGraphs | None = None
        self.notify: Notify | None = None
        self._world = world
        self._lockstep, self._experts, self._balancer = lockstep, experts, balancer
        self._awake = False

    @property
    def awake(self) -> bool:
        """This rank must go on to step: some rank may have work, or graphs are to be made."""
        unfinished = self.graphs is not None and not self.graphs.complete
        return (self._awake or unfinished) and not self.stopped

    def wake(self, number: int) -> None:
        """This rank has read of request `number`, its own or another rank's."""
        self._lockstep.seen = max(self._lockstep.seen, number)
        self._awake = True

    def begin(self, plan: StepPlan | None, has_more: bool = False) -> bool:
        """A step with this rank's `plan`; with None, take part in that of the others.

        `has_more`: sequences are open here, so that the others must not wait for messages even if
        none of them can be in this step: where steps overlap, the last one is not read yet.

        False: this rank computes nothing, having no tokens or because a rank leaves. Raises
        RankLostError where one is gone.
        """
        tokens, *sizes = _sizes(plan)
        try:
            agreed = self._lockstep.agree(tokens, self._balancer.ready, has_more, *sizes)
        except RankLostError:
            self._experts.modes.abort()  # what a step that was under way waits for never comes
            raise
        self.stopped = agreed.stop
        self._awake = not agreed.idle
        if agreed.idle and self.graphs is not None:
            self.graphs.capture_next()
        if agreed.stop or not agreed.tokens:
            return False
        self._balancer.before_step(agreed.ready)
        if self.notify is not None:
            self.notify(agreed.tokens, computes=tokens > 0)
        take_part = self._choose_replay(agreed)
        if not tokens:
            take_part()
            self.end()
        return tokens > 0

    def _choose_replay(self, agreed: Agreement) -> Callable[[], None]:
        """All ranks replay one size or none does; what a rank without tokens does in the step."""
        graphs, sizes = self.graphs, (agreed.tokens, agreed.sequences, agreed.longest)
        if graphs is not None and graphs.agree(*sizes):
            return graphs.replay_empty
        self._experts.modes.begin(agreed.tokens)
        return self._experts.take_part

    def follow(self, tokens: int, computes: bool) -> None:
        """The arguments of `notify`, on another tensor-parallel rank of the engine."""
        self._experts.modes.begin(tokens)
        if not computes:
            self._experts.take_part()

    def end(self) -> None:
        """The step is on its way."""
        self._balancer.after_step()

    def leave(self) -> None:
        """Step no more; the others are told, where they are about to step."""
        self.stop()
        if self.graphs is not None:
            self.graphs.discard()
        self._world.close()

    def stop(self) -> None:
        """Notify the others, where they are about to step, that this engine does no more."""
        self._lockstep.stopping = True
        if self.awake:
            self._lockstep.agree(0)

    # -- what capturing needs of the ranks (graphs.shared_graphs.Ranks) ---------------------------

    def padded(self, rows: int, tokens: Tensor, alone: bool) -> AbstractContextManager[None]:
        """Inside, a step runs that is as large on every rank; see ParallelExperts."""
        return self._experts.padded(rows, tokens, alone)

    def all_can(self, can: bool) -> bool:
        """Whether every rank can; all of them ask at the same time."""
        return self._lockstep.all_can(can)


def _sizes(plan: StepPlan | None) -> tuple[int, int, int]:
    """Tokens, sequences, and the most tokens of one."""
    return (plan.num_tokens, plan.num_seqs, plan.max_seqlen_q) if plan else (0, 0, 0)
