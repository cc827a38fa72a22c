# SPDX-License-Identifier: Apache-2.0
"""A model whose ranks are on two nodes with a GPU each; skipped with fewer."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from rtp_llm.device.cuda import CudaDevice
from rtp_llm.testing.usable_gpu import usable_gpus

# The server's packages are not part of every image that has a GPU.
for package in ("fastapi", "httpx", "tokenizers", "zmq"):
    pytest.importorskip(package)
GPU, COUNT = usable_gpus()
pytestmark = pytest.mark.skipif(GPU != "cuda" or COUNT < 2, reason=f"{COUNT} usable GPUs")
FLAGS = ("--dtype", "float32", "--kv-cache-mem-mb", "64", "--served-model-name", "tiny")


@pytest.mark.parametrize("kind", ["--tensor-parallel-size", "--pipeline-parallel-size"])
def test_they_answer_as_one_rank_and_end_together(kind: str, tmp_path: Path) -> None:
    from rtp_llm.testing.server.served_model import answers, save_served_model
    from rtp_llm.testing.server.two_nodes import node, two_nodes
    from rtp_llm.testing.server_processes import REAL, Stream, other_ranks, process

    save_served_model(tmp_path, context=30_000, kv_heads=4)
    with process(*FLAGS, command=REAL, model=tmp_path) as alone:
        expected = answers(alone.url)
    with two_nodes() as both:
        flags = (*FLAGS, *both, kind, "2", "--restart-engine", "0")
        places = [CudaDevice().visible_devices().environment(rank) for rank in range(2)]
        with (
            node(0, *flags, model=tmp_path, **places[0]) as first,
            node(1, *flags, model=tmp_path, **places[1]) as second,
        ):
            assert answers(first.url) == expected
            stream = Stream(first.url, model="tiny", max_tokens=25_000)
            (rank,) = other_ranks(second.process.pid)
            os.kill(rank, signal.SIGKILL)
            assert stream.events()[-1]["error"]["code"] == "engine_dead"
            assert (first.exit_code(), second.exit_code()) == (1, 1)
