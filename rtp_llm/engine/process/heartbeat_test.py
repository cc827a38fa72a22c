# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path
from typing import Any

from rtp_llm.engine.address import EngineAddress
from rtp_llm.engine.messages import EngineStats
from rtp_llm.engine.process.heartbeat import Heartbeat


def test_loaded_bytes_are_the_metrics_until_the_engine_has_its_own(tmp_path: Path) -> None:
    sender: Any = None  # the thread is not started
    heartbeat = Heartbeat(sender, EngineAddress(tmp_path))
    assert heartbeat.source() == EngineStats()
    heartbeat.report_loading(3, 4)
    assert heartbeat.source() == EngineStats(loaded_bytes=3, bytes_to_load=4)
