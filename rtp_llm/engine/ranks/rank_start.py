# SPDX-License-Identifier: Apache-2.0
"""How the process of another rank is started, wherever it is; torch is not needed for that."""

from __future__ import annotations

from collections.abc import Mapping

from rtp_llm.distributed.multicast import NO_MULTICAST

RANK_FACTORY = "rtp_llm.engine.start.rank_worker:make_worker"


def rank_environment(
    place: int, environ: Mapping[str, str], collectives: Mapping[str, str]
) -> dict[str, str]:
    """The variables of the rank with the ``place``-th device of a machine whose first rank has the
    variables ``environ``; ``collectives``: those of their network."""
    first = int(environ.get("LOCAL_RANK") or 0)
    return {**collectives, **NO_MULTICAST, "LOCAL_RANK": str(first + place)}
