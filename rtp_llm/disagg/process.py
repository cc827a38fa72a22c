# SPDX-License-Identifier: Apache-2.0
"""The engine process of a prefill or decode worker."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rtp_llm.device.early import start_driver
from rtp_llm.engine.process import main as process
from rtp_llm.engine.start.phases import Phases

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings
    from rtp_llm.engine.serving import Built

# What makes the workers of other tensor-parallel ranks.
RANK_FACTORY = "rtp_llm.disagg.rank_worker:make_worker"


def _build(
    settings: Settings,
    folder: Path,
    on_rank_failure: Callable[[str], None],
    report: Callable[[int, int], None],
) -> Built:
    phases = Phases()
    start_driver(settings.device_type)
    # torch takes seconds to import; by now the heartbeat is there.
    from rtp_llm.disagg.build import build_worker
    from rtp_llm.engine.ranks.tensor_ranks import RanksPlace
    from rtp_llm.engine.start.build import build_engine

    phases.end("imports")
    place = RanksPlace(folder, on_rank_failure, RANK_FACTORY)
    return build_worker(settings, build_engine(settings, report, phases, place=place))


if __name__ == "__main__":
    sys.exit(process.main(_build, "rtp_llm.disagg.build"))
