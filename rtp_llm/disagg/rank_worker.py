# SPDX-License-Identifier: Apache-2.0
"""What the process of rank 1 or up of a prefill or decode worker computes and transfers with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rtp_llm.disagg.metrics import TransferMetrics
from rtp_llm.disagg.rank_parts import RankParts
from rtp_llm.disagg.wire.messages import Offer
from rtp_llm.engine.start.rank_worker import build_rank

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings
    from rtp_llm.distributed.membership import Membership
    from rtp_llm.worker.worker import Worker


def make_worker(settings: Settings, membership: Membership) -> Worker:
    """The same steps as rank 0's in rtp_llm.disagg.build."""
    built, ranks = build_rank(settings, membership)
    worker = built.first
    parts = RankParts(settings, worker.runner, ranks)
    parts.fingerprint = ranks.agree_on(None, str)
    if settings.role == "prefill":
        store, offers = parts.offer(ranks.agree_on(None, str))
        ranks.gather(offers, list[Offer])
        tokens = built.limits.max_batch_tokens
        worker.connect(parts.sender(store, None, TransferMetrics(), tokens))
    else:
        worker.connect(parts.loads())
    return worker
