# SPDX-License-Identifier: Apache-2.0
"""A server whose model is on two tensor-parallel ranks, as a user starts it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from rtp_llm import LLM, SamplingParams
from rtp_llm.testing.server.served_model import (
    GREEDY,
    PROMPTS,
    answers,
    save_served_model,
)
from rtp_llm.testing.server.serving import wait_for
from rtp_llm.testing.server_processes import (
    REAL,
    TIMEOUT,
    Process,
    Stream,
    engines,
    is_gone,
    other_ranks,
    process,
    read_metrics,
    status,
)

pytestmark = pytest.mark.usefixtures("forked_processes")

FLAGS = ("--num-threads", "1", "--kv-cache-mem-mb", "32", "--served-model-name", "tiny")
TWO = ("--tensor-parallel-size", "2")
NOTICED_SECONDS = 20.0  # before any time-out; the soak test asks for two
LONG = 30_000  # tokens that no machine has given before a test does something to their stream


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)  # the servers want the other core
    path = tmp_path_factory.mktemp("qwen3")
    # So long an answer has to fit into a small cache.
    save_served_model(path, context=LONG + 192, kv_heads=2)
    return path


def processes_of(server: Process) -> tuple[int, int]:
    """Those of rank 0 and of rank 1."""
    (engine,) = engines(server.process.pid)
    (rank,) = other_ranks(engine)
    return engine, rank


def offline(folder: Path, **settings: Any) -> list[str]:
    """The answers of an LLM."""
    with LLM(folder, num_threads=1, kv_cache_mem_mb=32, dtype="float32", **settings) as llm:
        return [each.outputs[0].text for each in llm.generate(PROMPTS, SamplingParams(**GREEDY))]


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[str]:
    """Of one rank."""
    return offline(folder)


def test_llms_of_several_ranks_answer_as_one(folder: Path, expected: list[str]) -> None:
    assert offline(folder, tensor_parallel_size=2, data_parallel_size=2) == expected
    assert offline(folder, pipeline_parallel_size=2, data_parallel_size=2) == expected
    llm = LLM(folder, num_threads=1, kv_cache_mem_mb=32, tensor_parallel_size=2)
    with llm, pytest.raises(ValueError, match="logits_processors of several ranks"):
        llm.generate("a", logits_processors=[lambda logits, rows: None])


def test_a_server_answers_as_one_rank_and_ends_with_any_of_them(
    folder: Path, expected: list[str], tmp_path: Path
) -> None:
    files, shared = tmp_path / "files", set(os.listdir("/dev/shm"))
    files.mkdir()
    flags = (*FLAGS, *TWO, "--dtype", "float32", "--restart-engine", "1")
    with process(*flags, command=REAL, model=folder, TMPDIR=str(files)) as server:
        url = server.url
        server.wait_for("tensor_parallel_size 2", "stderr")
        assert answers(url) == expected
        for number, which in enumerate((1, 0)):  # rank 1, then rank 0, which is the last one
            ranks = processes_of(server)
            stream = Stream(url, model="tiny", max_tokens=LONG)
            killed = time.monotonic()
            os.kill(ranks[which], signal.SIGKILL)
            assert stream.events()[-1]["error"]["code"] == "engine_dead"
            assert time.monotonic() - killed < NOTICED_SECONDS
            wait_for(lambda: all(map(is_gone, ranks)), TIMEOUT)  # noqa: B023
            if number == 0:
                wait_for(lambda: read_metrics(url)["rtp_llm_engine_restarts_total"] == 1, TIMEOUT)
                wait_for(lambda: status(url) == "ready", TIMEOUT)
                assert answers(url) == expected
        assert server.exit_code() == 1
    assert not os.listdir(files)
    assert set(os.listdir("/dev/shm")) <= shared
