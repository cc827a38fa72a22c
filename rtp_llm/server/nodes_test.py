# SPDX-License-Identifier: Apache-2.0
"""A model whose ranks are on two nodes: two process trees of this machine that know only each
other's address."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rtp_llm import LLM, SamplingParams
from rtp_llm.testing.server.served_model import ASK, PROMPTS, answers, save_served_model
from rtp_llm.testing.server.serving import wait_for
from rtp_llm.testing.server.two_nodes import STAGES, TENSOR, node, two_nodes
from rtp_llm.testing.server_processes import (
    TIMEOUT,
    Stream,
    engines,
    is_gone,
    other_ranks,
    status,
)

pytestmark = pytest.mark.usefixtures("forked_processes")

FLAGS = ("--num-threads", "1", "--kv-cache-mem-mb", "32", "--served-model-name", "tiny")
NOTICED_SECONDS = 20.0  # ten times what is promised
LONG = 30_000  # tokens that no machine has given before a test does something to their stream


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)  # the servers want the other core
    path = tmp_path_factory.mktemp("qwen3")
    save_served_model(path, context=LONG + 192, kv_heads=4)
    return path


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("key") / "key"
    path.write_text("0123456789abcdef0123456789abcdef\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def node_flags() -> Iterator[tuple[str, ...]]:
    """What both nodes are started with."""
    with two_nodes() as flags:
        yield (*FLAGS, "--dtype", "float32", *flags)


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[str]]:
    """Of one rank: greedy, then sampled."""
    with LLM(folder, num_threads=1, kv_cache_mem_mb=32, dtype="float32") as llm:
        sampled = SamplingParams(**ASK, temperature=0.9, top_k=20, seed=7)
        return [
            [each.outputs[0].text for each in llm.generate(PROMPTS, how)]
            for how in (SamplingParams(**ASK, temperature=0), sampled)
        ]


def test_two_nodes_answer_as_one_rank_and_come_back_together(
    folder: Path, key: Path, expected: list[list[str]], node_flags: tuple[str, ...]
) -> None:
    flags = (*node_flags, *TENSOR, "--worker-key-file", str(key), "--restart-engine", "1")
    with node(1, *flags, model=folder) as second, node(0, *flags, model=folder) as first:
        second.wait_for("node 1 of 2: ranks 1 to 1 of 2", "stderr")
        url = first.url
        first.wait_for("node 0 cpu, node 1 cpu", "stderr")
        assert answers(url) == expected[0]
        assert answers(url, temperature=0.9, top_k=20, seed=7) == expected[1]
        (engine,) = engines(first.process.pid)
        assert not other_ranks(engine)
        (rank,) = other_ranks(second.process.pid)
        stream = Stream(url, model="tiny", max_tokens=LONG)
        killed = time.monotonic()
        os.kill(rank, signal.SIGKILL)
        error = stream.events()[-1]["error"]
        assert time.monotonic() - killed < NOTICED_SECONDS
        assert error["code"] == "engine_dead"
        assert "node 1: rank 1 was ended by signal SIGKILL" in error["message"]
        wait_for(lambda: is_gone(engine), TIMEOUT)
        wait_for(lambda: status(url) == "ready", TIMEOUT)
        assert answers(url) == expected[0]
        first.process.send_signal(signal.SIGTERM)
        assert first.exit_code() == 0
        assert second.exit_code() == 0


@pytest.mark.parametrize(("killed", "divided"), [(0, TENSOR), (1, STAGES)])
def test_when_a_node_is_lost_the_other_ends(
    killed: int,
    divided: tuple[str, ...],
    folder: Path,
    expected: list[list[str]],
    node_flags: tuple[str, ...],
) -> None:
    flags = (*node_flags, *divided, "--restart-engine", "0")
    with node(0, *flags, model=folder) as first, node(1, *flags, model=folder) as second:
        url = first.url
        assert answers(url, temperature=0.9, top_k=20, seed=7) == expected[1]
        (engine,) = engines(first.process.pid)
        (rank,) = other_ranks(second.process.pid)
        stream = Stream(url, model="tiny", max_tokens=LONG)
        lost = time.monotonic()
        if killed:
            second.process.kill()
            assert stream.events()[-1]["error"]["code"] == "engine_dead"
            assert first.exit_code() == 1
            assert "node 1: 127.0.0.1 is gone" in first.stderr
        else:
            first.process.kill()
            assert second.exit_code() == 1
            assert "node 0: 127.0.0.1 is gone" in second.stderr
        wait_for(lambda: is_gone(engine) and is_gone(rank), TIMEOUT)
        assert time.monotonic() - lost < NOTICED_SECONDS


def test_nodes_that_do_not_fit_are_refused(
    folder: Path, key: Path, node_flags: tuple[str, ...]
) -> None:
    flags = (*node_flags, *TENSOR, "--worker-key-file", str(key))
    other = key.with_name("other")
    other.write_text("another key of another cluster\n")
    other.chmod(0o600)
    wrong = {
        "seed: 0 on node 0, 5 on this one": ("--seed", "5"),
        "has another key (worker_key_file)": ("--worker-key-file", str(other)),
    }
    with node(0, *flags, model=folder) as first:
        first.wait_for("waiting for 1 other nodes", "stderr")
        for reason, changed in wrong.items():
            with node(1, *flags, *changed, model=folder) as second:
                assert second.exit_code() == 1
                assert reason in second.stderr, second.stderr
        assert first.process.poll() is None  # it waits for the right one


def test_a_node_alone_does_not_wait_for_ever(folder: Path, node_flags: tuple[str, ...]) -> None:
    flags = (*node_flags, *TENSOR, "--start-timeout", "3")
    with node(1, *flags, model=folder) as second:
        assert second.exit_code() == 1
        assert "node 0 did not listen at 127.0.0.1:" in second.stderr
