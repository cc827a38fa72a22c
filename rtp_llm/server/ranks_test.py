# SPDX-License-Identifier: Apache-2.0
"""Tests of a server whose engine has several ranks, as a user starts it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

from rtp_llm import LLM, SamplingParams
from rtp_llm.testing.server.served_model import (
    GREEDY,
    PROMPTS,
    answers,
    save_served_model,
)
from rtp_llm.testing.server_processes import REAL, Stream, engines, process, read_metrics

pytestmark = pytest.mark.usefixtures("forked_processes")

FLAGS = ("--num-threads", "1", "--kv-cache-mem-mb", "32", "--served-model-name", "tiny")
LONG = 30_000  # tokens that no machine has given before a test does something to their stream
RANKS = ("--data-parallel-size", "2", "--eplb-mode", "stats", "--eplb-update-time", "4")


@pytest.fixture(scope="module", params=["qwen3_moe", "llama"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)  # the servers want the other core
    path = tmp_path_factory.mktemp(request.param)
    # So long an answer has to fit into a small cache.
    save_served_model(path, context=LONG + 192, kv_heads=1, kind=request.param)
    return path


def test_a_server_of_two_ranks_answers_as_one_and_ends_with_one_of_them(folder: Path) -> None:
    with LLM(folder, num_threads=1, kv_cache_mem_mb=32) as llm:
        expected = [
            output.outputs[0].text for output in llm.generate(PROMPTS, SamplingParams(**GREEDY))
        ]
    mixture = "qwen3_moe" in folder.name
    flags = (*FLAGS, "--restart-engine", "0", *(RANKS if mixture else RANKS[:2]))
    with process(*flags, command=REAL, model=folder) as server:
        url = server.url
        assert answers(url) == expected
        assert answers(url) == expected
        ranks = engines(server.process.pid)
        assert len(ranks) == 2
        values = read_metrics(url)
        assert values["rtp_llm_generated_tokens_total"] == 2 * 4 * 20
        streams = [Stream(url, model="tiny", max_tokens=LONG) for _ in range(4)]
        # Ranks of a dense model wait for none: a silent one must be noticed from outside.
        os.kill(ranks[1], signal.SIGKILL if mixture else signal.SIGSTOP)
        ends = [stream.events()[-1] for stream in streams]
        # Those of the other rank may come to their end before the silence is noticed.
        assert sum("engine_dead" in str(end) for end in ends) >= 2
        assert server.exit_code() == 1
        # Which of them was first to be found dead, and by whom, depends on the machine's load.
        assert "rank " in server.wait_for("The server answers 503", "stderr")
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)
