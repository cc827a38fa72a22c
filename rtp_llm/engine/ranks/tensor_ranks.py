# SPDX-License-Identifier: Apache-2.0
"""The ranks that compute one model together, as each of them sees the others."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rtp_llm.device import DeviceError
from rtp_llm.device.numa import stay_near
from rtp_llm.distributed.membership import LOOPBACK, Membership
from rtp_llm.distributed.multicast import NO_MULTICAST
from rtp_llm.distributed.peer_memory import NoPeerMemoryError
from rtp_llm.distributed.pipeline import SINGLE_STAGE, Pipeline, connect_stages
from rtp_llm.distributed.symmetric_reduce import SymmetricReduce
from rtp_llm.distributed.tensor_parallel import SINGLE, TensorParallel
from rtp_llm.distributed.world import World
from rtp_llm.engine.messages import EngineStartError
from rtp_llm.engine.ranks.first_node import FirstNode
from rtp_llm.engine.ranks.rank_start import RANK_FACTORY, rank_environment
from rtp_llm.engine.ranks.topology import Topology
from rtp_llm.worker.cache.plan import CachePlan
from rtp_llm.worker.graphs.capture_session import CaptureSession
from rtp_llm.worker.heads.logit_shards import LogitShards
from rtp_llm.worker.ranks.rank_failure import RankFailure
from rtp_llm.worker.ranks.rank_processes import RankProcesses
from rtp_llm.worker.ranks.ranks_worker import RanksWorker

if TYPE_CHECKING:
    from rtp_llm._runtime import Scheduler
    from rtp_llm.config.settings import Settings
    from rtp_llm.device import Device
    from rtp_llm.distributed.group import Group
    from rtp_llm.models.causal_lm import CausalLM
    from rtp_llm.worker.cache.plan import CacheShape
    from rtp_llm.worker.local_worker import LocalWorker

Said = TypeVar("Said")
_log = logging.getLogger(__name__)
_NEWS_SECONDS = 1.0
_CAPTURE_TIMEOUT = 1.5  # with what it takes to be told, all ranks know of it in two seconds


@dataclass(frozen=True)
class RanksPlace:
    """Where ranks meet: a ``folder`` that somebody else removes, and who is told in a thread of
    its own when one of them is lost. ``factory`` makes the others' workers; see Start. ``engine``:
    which one this is, of several that have experts for each other."""

    folder: Path
    on_rank_failure: Callable[[str], None] | None = None
    factory: str | None = None
    engine: Membership | None = None


@dataclass(frozen=True)
class TensorRanks:
    """One rank's view. ``parallel``: those of its stage, ``world``: all of them; ``experts``: this
    rank of all engines, among which experts of a mixture are divided further. For rank 0 alone:
    ``processes`` of the other ranks of its machine, and the other machines that have ranks."""

    parallel: TensorParallel = SINGLE
    pipeline: Pipeline = SINGLE_STAGE
    world: World | None = None
    experts: World | None = None
    processes: RankProcesses | None = None
    nodes: FirstNode | None = None

    @property
    def several(self) -> bool:
        """There are others."""
        return self.world is not None

    def loaded(self, settings: Settings) -> None:
        """Wait until all ranks have loaded their weights: from here on they step together."""
        if self.world is not None:
            self.world.wait_for_all(settings.start_timeout)

    def agree_on_plan(self, plan: CachePlan, shape: CacheShape) -> CachePlan:
        """All ranks have the blocks that fit on the one with the least room; ``shape``: of the
        cache of this one's layers."""
        return plan.within(self.gather(plan, CachePlan), shape)

    def agree_on(self, value: Said | None, kind: type[Said]) -> Said:
        """What rank 0 says, of the type `kind`; what the others give does not matter."""
        said: Said = self.gather(value, kind | None)[0]
        return said

    def gather(self, value: Any, kind: Any) -> list[Any]:
        """What each rank says, of the type `kind`."""
        return [value] if self.world is None else self.world.host.gather(value, kind)

    def logit_shards(self, model: CausalLM, device: Device) -> LogitShards | None:
        """What samples from logits of which this rank has some columns."""
        if self.parallel.group is None:
            return None
        return LogitShards(model, self.parallel, device.torch_device)

    @cached_property
    def captures(self) -> CaptureSession | None:
        """For graphs that all ranks have, or none."""
        if self.world is None:
            return None
        direct = self.parallel.direct
        sums = [direct.captured] if direct is not None and direct.captured is not None else []
        return CaptureSession(self.world.host, sums, timeout=_CAPTURE_TIMEOUT)

    def worker(
        self, local: LocalWorker, scheduler: Scheduler, settings: Settings
    ) -> RanksWorker | None:
        """For rank 0 of several: what executes a step on all of them."""
        if self.processes is None:
            return None
        return RanksWorker(
            local,
            self.processes,
            scheduler,
            timeout=settings.step_timeout,
            in_place=local.runner.device.shares_memory,
            stages=self.pipeline.stages,
            nodes=None if self.nodes is None else self.nodes.others,
        )

    # -- as the engine process's StepGroup ---------------------------------------------------------

    @property
    def stopped(self) -> bool:
        """Rank 0 alone says when it is over."""
        return False

    def wake(self, number: int) -> None:
        """Messages come to rank 0 alone."""

    def leave(self) -> None:
        """End the other ranks."""
        if self.nodes is not None:
            self.nodes.close()
        if self.processes is not None:
            self.processes.close()
        self.parallel.abort()  # of a step that was under way
        if self.captures is not None:
            self.captures.end()
        if self.world is not None:
            self.world.abandon()

    def give_up(self) -> None:
        """The engine could not be built: end the other ranks, whose reason it may be.

        Raises WorkerLostError if it is.
        """
        if self.processes is not None:
            try:
                self.processes.check(_NEWS_SECONDS)
            finally:
                self.leave()


def start_ranks(settings: Settings, device: Device, place: RanksPlace | None) -> TensorRanks:
    """Rank 0: spawn the processes of the others, and meet them.

    Raises:
        EngineStartError: nobody said where.
        RankLostError: not all came.
    """
    size = settings.ranks_per_engine
    if size == 1:
        return TensorRanks()
    if place is None:
        raise EngineStartError(
            f"a model on {size} ranks needs processes of its own: use LLM(...) or rtp-llm serve, "
            "which start them"
        )
    joined: list[TensorParallel] = []
    rank_failure = RankFailure(partial(_lost, joined, place))
    nodes = FirstNode(settings) if settings.nnodes > 1 else None
    network = LOOPBACK if nodes is None else nodes.variables
    meeting = str(place.folder / "ranks") if nodes is None else nodes.rendezvous
    os.environ.update({**NO_MULTICAST, **network})
    own, *others = _memberships(size, meeting, place.engine)[: size // settings.nnodes]
    topology = Topology.of(settings, is_mixture=False)
    processes = RankProcesses(
        place.factory or RANK_FACTORY,
        [(settings, each) for each in others],
        [rank_environment(rank, os.environ, network) for rank, _ in enumerate(others, 1)],
        [topology.rank_name(rank) for rank, _ in enumerate(others, 1)],
        rank_failure,
    )
    try:
        if nodes is not None:
            nodes.gather(rank_failure)
        ranks = join_ranks(settings, device, own, rank_failure.check)
    except BaseException:
        _give_up(processes, nodes)
        raise
    joined.append(ranks.parallel)
    return replace(ranks, processes=processes, nodes=nodes)


def _give_up(processes: RankProcesses, nodes: FirstNode | None) -> None:
    """End the other ranks; raises WorkerLostError if one of them is the reason."""
    try:
        processes.check(_NEWS_SECONDS)
    finally:
        processes.close()
        if nodes is not None:
            nodes.close()


def _memberships(size: int, meeting: str, engine: Membership | None) -> list[Membership]:
    """Of each rank of this engine, by itself or among all engines."""
    if engine is None:
        return [Membership(rank, size, meeting) for rank in range(size)]
    first, whole = engine.rank * size, engine.size * size
    return [Membership(first + rank, whole, engine.rendezvous) for rank in range(size)]


def _lost(joined: Sequence[TensorParallel], place: RanksPlace, reason: str) -> None:
    for parallel in joined:  # this process's, once it has met the others
        parallel.abort()
    if place.on_rank_failure is not None:
        place.on_rank_failure(reason)


def join_ranks(
    settings: Settings,
    device: Device,
    membership: Membership,
    look: Callable[[], None] = lambda: None,
) -> TensorRanks:
    """Meet the other ranks of ``membership``; ``look`` may raise when they will not come."""
    stay_near(device)
    limits = settings.step_timeout, settings.start_timeout
    world = everyone = World.connect(membership, device, *limits, look)
    pipeline, experts, size = SINGLE_STAGE, None, settings.tensor_parallel_size
    if membership.size > settings.ranks_per_engine:
        ranks = range(membership.size)
        world = everyone.part([ranks[first : first + size] for first in ranks[::size]], device)
        experts = everyone.part([ranks[rank::size] for rank in range(size)], device)
    group: Group | None = world.tensors
    if settings.pipeline_parallel_size > 1:
        pipeline, group = connect_stages(world, settings.pipeline_parallel_size, size)
    if group is None:
        return TensorRanks(SINGLE, pipeline, world)
    together = Topology.of(settings, is_mixture=False).part_on_one_node(membership.rank)
    direct = _direct_sums(group, device) if together else None
    if settings.enable_graphs is not False and device.supports("graph_capture"):
        first = world.rank - group.rank
        _capture_sums_apart(direct, device, world, range(first, first + group.size))
    parallel = TensorParallel(group.rank, group.size, group, direct)
    return TensorRanks(parallel, pipeline, world, experts)


def _direct_sums(group: Group, device: Device) -> SymmetricReduce | None:
    try:
        return SymmetricReduce.connect(group, device)
    except NoPeerMemoryError as error:
        _log.info("sums over ranks are all made by %s: %s", device.collectives, error)
        return None


def _capture_sums_apart(
    direct: SymmetricReduce | None, device: Device, world: World, ranks: Sequence[int]
) -> None:
    """Sums in graphs have memory of their own on all ranks of a capture, or on none.

    ``ranks``: those of ``world`` that sum together.
    """
    try:
        if direct is not None:
            direct.capture_apart(device, ranks)
    except (DeviceError, RuntimeError) as error:
        _log.info("sums in graphs share the memory of the others: %s", error)
    have_it = world.host.gather(direct is not None and direct.captured is not None, bool)
    if direct is not None and direct.captured is not None and not all(have_it):
        _log.info("sums in graphs share the memory of the others: another rank has none for them")
        direct.captured = None
