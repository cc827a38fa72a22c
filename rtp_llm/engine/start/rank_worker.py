# SPDX-License-Identifier: Apache-2.0
"""What the process of rank 1 or up computes with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rtp_llm.device import resolve_device
from rtp_llm.engine.ranks.lockstep_worker import FollowingWorker
from rtp_llm.engine.ranks.tensor_ranks import join_ranks
from rtp_llm.engine.start.build_worker import build_worker, prepare
from rtp_llm.engine.start.phases import Phases
from rtp_llm.worker.speculative.methods import make_proposer

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings
    from rtp_llm.distributed.membership import Membership
    from rtp_llm.engine.ranks.tensor_ranks import TensorRanks
    from rtp_llm.engine.start.build_worker import BuiltWorker
    from rtp_llm.worker.worker import Worker


def make_worker(settings: Settings, membership: Membership) -> Worker:
    """For a process of this rank; see Start."""
    built, _ = build_rank(settings, membership)
    return built.worker if built.ranks is None else FollowingWorker(built.worker, built.ranks)


def build_rank(settings: Settings, membership: Membership) -> tuple[BuiltWorker, TensorRanks]:
    """The same steps as rank 0's, so that both agree on what only all can do."""
    device = resolve_device(settings.device_type)
    prepare(settings, device)
    ranks = join_ranks(settings, device, membership)
    proposer = make_proposer(settings, device)
    return build_worker(settings, device, ranks, proposer, Phases()), ranks
