# SPDX-License-Identifier: Apache-2.0
"""An engine that is killed at random moments under fifty streams, again and again."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import httpx

from rtp_llm.testing.server.serving import wait_for
from rtp_llm.testing.server_processes import (
    TIMEOUT,
    Stream,
    engines,
    open_descriptors,
    process,
    read_metrics,
    status,
)

KILLS, STREAMS = 100, 50
MAX_GROWTH = 32 * 2**20


def resident_bytes(pid: int) -> int:
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def test_nothing_is_left_of_engines_that_were_killed(tmp_path: Path) -> None:
    chance = random.Random(1)
    shared = set(os.listdir("/dev/shm"))
    environ = {"FAKE_ENGINE": "scripted", "TMPDIR": str(tmp_path)}
    with process("--restart-engine", "1000", "--access-log", "off", **environ) as server:
        url = server.url
        files = len(os.listdir(tmp_path))
        for number in range(1, KILLS + 1):
            streams = [Stream(url, begun=False, max_tokens=200) for _ in range(STREAMS)]
            time.sleep(chance.uniform(0, 0.5))
            (engine,) = engines(server.process.pid)
            os.kill(engine, signal.SIGKILL)
            wait_for(
                lambda n=number: read_metrics(url)["rtp_llm_engine_restarts_total"] == n, TIMEOUT
            )
            wait_for(lambda: status(url) == "ready", TIMEOUT)
            for stream in streams:
                stream.thread.join(TIMEOUT)
                whole = stream.status == 200 and stream.text.endswith("data: [DONE]\n\n")
                assert whole or '"error"' in stream.text or stream.status == 503
            assert not Path(f"/proc/{engine}").exists()
            answer = httpx.post(f"{url}/v1/completions", json={"prompt": [7], "max_tokens": 3})
            assert answer.status_code == 200
            if number == 1:  # by now all that is started late is there
                descriptors = open_descriptors(server)
                first = resident_bytes(server.process.pid)
        assert len(engines(server.process.pid)) == 1
        assert len(os.listdir(tmp_path)) == files
        wait_for(lambda: open_descriptors(server) <= descriptors, TIMEOUT)
        assert resident_bytes(server.process.pid) - first < MAX_GROWTH
        server.process.send_signal(signal.SIGTERM)
        assert server.exit_code() == 0
    assert not os.listdir(tmp_path)
    assert set(os.listdir("/dev/shm")) <= shared
