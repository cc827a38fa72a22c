"""A server whose model is on several GPUs and that loses one of them, again and again; skipped with
fewer."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from rtp_llm.testing.usable_gpu import usable_gpus

# The server's packages are not part of every image that has a GPU.
for package in ("fastapi", "httpx", "tokenizers", "zmq"):
    pytest.importorskip(package)
GPU, COUNT = usable_gpus()
pytestmark = pytest.mark.skipif(COUNT < 2, reason=f"{COUNT} usable GPUs")
# How often a server of so many ranks loses one.
LOSSES = {2: 1, 4: 5}
STEP_TIMEOUT = 5
# Ten times what is promised; a rank that stands still is noticed by its steps.
NOTICED_SECONDS = {signal.SIGKILL: 20.0, signal.SIGSTOP: STEP_TIMEOUT + 20.0}


@pytest.mark.parametrize("how", NOTICED_SECONDS, ids=lambda how: how.name)
@pytest.mark.parametrize("size", LOSSES)
def test_it_comes_back_and_leaves_nothing(size: int, how: signal.Signals, tmp_path: Path) -> None:
    from rtp_llm.server.served_model_for_tests import answers, save_served_model
    from rtp_llm.server.serving_for_tests import wait_for
    from rtp_llm.testing.server_processes import (
        PATIENCE,
        REAL,
        Stream,
        engines,
        is_gone,
        other_ranks,
        process,
        read_metrics,
        status,
    )

    if size > COUNT:
        pytest.skip(f"{size} ranks, {COUNT} usable GPUs")
    model, files, shared = tmp_path / "model", tmp_path / "files", set(os.listdir("/dev/shm"))
    model.mkdir()
    files.mkdir()
    save_served_model(model, context=30_000, kv_heads=size)
    flags = (
        "--tensor-parallel-size", str(size), "--device-type", GPU, "--dtype", "float32",
        "--restart-engine", str(LOSSES[size]), "--step-timeout", str(STEP_TIMEOUT),
        "--kv-cache-mem-mb", "64", "--served-model-name", "tiny",
    )  # fmt: skip
    with process(*flags, command=REAL, model=model, TMPDIR=str(files)) as server:
        url = server.url
        expected = answers(url)
        for loss in range(LOSSES[size]):
            (engine,) = engines(server.process.pid)
            ranks = [engine, *other_ranks(engine)]
            assert len(ranks) == size
            stream = Stream(url, model="tiny", max_tokens=25_000)
            lost = time.monotonic()
            os.kill(ranks[1 + loss % (size - 1)], how)
            assert stream.events()[-1]["error"]["code"] == "engine_dead"
            assert time.monotonic() - lost < NOTICED_SECONDS[how]
            wait_for(lambda: all(map(is_gone, ranks)), PATIENCE)  # noqa: B023
            restarts = loss + 1
            wait_for(
                lambda: read_metrics(url)["rtp_llm_engine_restarts_total"] == restarts,  # noqa: B023
                PATIENCE,
            )
            wait_for(lambda: status(url) == "ready", PATIENCE)
            assert answers(url) == expected
        server.process.send_signal(signal.SIGTERM)
        assert server.exit_code() == 0
    assert not os.listdir(files)
    assert set(os.listdir("/dev/shm")) <= shared
