"""How one rank's engine steps together with the others that hold parts of its model's experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rtp_llm.distributed.balancer import Balancer
    from rtp_llm.distributed.lockstep import Lockstep
    from rtp_llm.distributed.world import World
    from rtp_llm.layers.moe.parallel import ParallelExperts


class RankSteps:
    """Around each step: agree with the other ranks, take part in theirs, balance experts.

    Every rank calls `begin` equally often. It waits for the slowest of them.
    """

    def __init__(
        self, world: World, lockstep: Lockstep, experts: ParallelExperts, balancer: Balancer
    ) -> None:
        self.stopped = False
        self._world = world
        self._lockstep, self._experts, self._balancer = lockstep, experts, balancer
        self._awake = False

    @property
    def awake(self) -> bool:
        """Some rank may have work, so that this one must go on to step."""
        return self._awake and not self.stopped

    def wake(self, number: int) -> None:
        """This rank has read of request `number`, its own or another rank's."""
        self._lockstep.seen = max(self._lockstep.seen, number)
        self._awake = True

    def begin(self, tokens: int, has_more: bool = False) -> bool:
        """A step with `tokens` tokens of this rank; with none, take part in that of the others.

        `has_more`: sequences are open here, so that the others must not wait for messages even if
        none of them can be in this step: where steps overlap, the last one is not read yet.

        False: this rank computes nothing, having no tokens or because a rank leaves. Raises
        RankLostError where one is gone.
        """
        agreed = self._lockstep.agree(tokens, self._balancer.ready, has_more)
        self.stopped = agreed.stop
        self._awake = not agreed.idle
        if agreed.stop or not agreed.tokens:
            return False
        self._balancer.before_step(agreed.ready)
        self._experts.forms.begin(agreed.tokens)
        if not tokens:
            self._experts.take_part()
            self.end()
        return tokens > 0

    def end(self) -> None:
        """The step is on its way."""
        self._balancer.after_step()

    def leave(self) -> None:
        """Step no more; the others are told, where they are about to step."""
        self._lockstep.stopping = True
        if self.awake:
            self._lockstep.agree(0)
        self._world.close()
