# SPDX-License-Identifier: Apache-2.0
"""A server whose model is on several GPUs and that loses one of them, again and again; skipped with
fewer."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rtp_llm.testing.usable_gpu import usable_gpus

if TYPE_CHECKING:
    from rtp_llm.testing.server_processes import Process

# The server's packages are not part of every image that has a GPU.
for package in ("fastapi", "httpx", "tokenizers", "zmq"):
    pytest.importorskip(package)
GPU, COUNT = usable_gpus()
pytestmark = pytest.mark.skipif(COUNT < 2, reason=f"{COUNT} usable GPUs")
# How often a server of so many ranks loses one.
LOSSES = {2: 1, 4: 5}
STEP_TIMEOUT = 10
# Ten times what is promised.
NOTICED_SECONDS = {signal.SIGKILL: 20.0, signal.SIGSTOP: 20.0}
FLAGS = ("--device-type", GPU, "--dtype", "float32", "--kv-cache-mem-mb", "64")
RESTARTS = "rtp_llm_engine_restarts_total"


def lose_a_rank(server: Process, number: int, how: signal.Signals) -> None:
    """Returns when the engine is there again."""
    from rtp_llm.testing.server.serving import wait_for
    from rtp_llm.testing.server_processes import (
        TIMEOUT,
        Stream,
        engines,
        is_gone,
        other_ranks,
        read_metrics,
        status,
    )

    url, before = server.url, read_metrics(server.url)[RESTARTS]
    (engine,) = engines(server.process.pid)
    others = other_ranks(engine)
    stream = Stream(url, model="tiny", max_tokens=25_000)
    lost = time.monotonic()
    os.kill(others[number % len(others)], how)
    assert stream.events()[-1]["error"]["code"] == "engine_dead"
    assert time.monotonic() - lost < NOTICED_SECONDS[how]
    wait_for(lambda: all(map(is_gone, [engine, *others])), TIMEOUT)
    wait_for(lambda: read_metrics(url)[RESTARTS] > before, TIMEOUT)
    wait_for(lambda: status(url) == "ready", TIMEOUT)


@pytest.mark.parametrize("how", NOTICED_SECONDS, ids=lambda how: how.name)
@pytest.mark.parametrize("size", LOSSES)
def test_it_comes_back_and_leaves_nothing(size: int, how: signal.Signals, tmp_path: Path) -> None:
    from rtp_llm.testing.server.served_model import answers, save_served_model
    from rtp_llm.testing.server_processes import REAL, process

    if size > COUNT:
        pytest.skip(f"{size} ranks, {COUNT} usable GPUs")
    model, files, shared = tmp_path / "model", tmp_path / "files", set(os.listdir("/dev/shm"))
    model.mkdir()
    files.mkdir()
    save_served_model(model, context=30_000, kv_heads=size)
    # Two restarts more: a start may take longer than a step may, and is tried again.
    flags = ("--tensor-parallel-size", str(size), "--restart-engine", str(LOSSES[size] + 2))
    flags += ("--step-timeout", str(STEP_TIMEOUT), "--served-model-name", "tiny", *FLAGS)
    with process(*flags, command=REAL, model=model, TMPDIR=str(files)) as server:
        expected = answers(server.url)
        for number in range(LOSSES[size]):
            lose_a_rank(server, number, how)
            assert answers(server.url) == expected
        server.process.send_signal(signal.SIGTERM)
        assert server.exit_code() == 0
    assert not os.listdir(files)
    assert set(os.listdir("/dev/shm")) <= shared
