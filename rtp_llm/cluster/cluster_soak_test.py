# SPDX-License-Identifier: Apache-2.0
"""Replicas on a Ray cluster of nodes of this machine: placed, divided, lost and placed again.

`./dev soak` installs Ray, whose folder RAY_LIBRARY names.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from rtp_llm.testing.kept_port import kept_port
from rtp_llm.testing.server.served_model import save_served_model
from rtp_llm.testing.server_processes import TIMEOUT, Process, environment, process

FLAGS = ("--num-threads", "1", "--kv-cache-mem-mb", "32", "--device-type", "cpu")
NAMES = ("--served-model-name", "tiny", "--dtype", "float32")
ASK = {"model": "tiny", "prompt": "Once", "temperature": 0, "max_tokens": 10, "ignore_eos": True}
SERVE = [sys.executable, "-m", "rtp_llm", "serve"]
MARK = "RTP_TEST_NODE"


@pytest.fixture(scope="module")
def library() -> str:
    found = os.environ.get("RAY_LIBRARY", "")
    assert found, "RAY_LIBRARY: a folder with deps/requirements_ray.txt (./dev soak)"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    sys.path.append(found)
    os.environ["PYTHONPATH"] = os.pathsep.join([environment()["PYTHONPATH"], found])
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("qwen3")
    save_served_model(path, context=4096, kv_heads=4)
    return path


@pytest.fixture
def cluster(library: str) -> Iterator[Any]:
    """Without a processor for replicas: tests add nodes."""
    from ray.cluster_utils import Cluster

    with kept_port() as port:
        head = {"num_cpus": 0, "include_dashboard": False, "ray_client_server_port": port}
        made = Cluster(initialize_head=True, head_node_args=head)
        made.client = f"ray://127.0.0.1:{port}"
        yield made
        made.shutdown()


def add_nodes(cluster: Any, count: int) -> list[Any]:
    """Of one processor each, by whose mark their processes can be told apart."""
    return [cluster.add_node(num_cpus=1, env_vars={MARK: f"number{n}"}) for n in range(count)]


def nodes_of(folder: Path, role: str = "") -> set[int]:
    """The numbers of nodes that have a process of a replica, or of one with this role."""
    found = set()
    for each in Path("/proc").glob("[0-9]*"):
        try:
            words = (each / "cmdline").read_text().split("\0")
            if "serve" in words and str(folder) in words and "--cluster" not in words:
                variables = (each / "environ").read_text().split("\0")
                if not role or f"RTP_LLM_ROLE={role}" in variables:
                    found |= {int(v[-1]) for v in variables if v.startswith(f"{MARK}=")}
        except OSError:  # it has just ended
            continue
    return found


def await_that(done: Callable[[], object], server: Process) -> None:
    began = time.monotonic()
    while not done():
        assert server.process.poll() is None, server.stderr
        assert time.monotonic() - began < TIMEOUT, server.stderr
        time.sleep(0.1)


def healthy(url: str) -> int:
    workers = httpx.get(f"{url}/workers", headers={"accept": "application/json"}).json()
    return sum(worker["healthy"] for worker in workers)


def answer(url: str) -> str:
    found = httpx.post(f"{url}/v1/completions", json=ASK, timeout=TIMEOUT)
    assert found.status_code == 200, found.text
    return str(found.json()["choices"][0]["text"])


@pytest.fixture(scope="module")
def expected(folder: Path) -> str:
    """Of one rank."""
    with process(*FLAGS, *NAMES, command=SERVE, model=folder) as server:
        return answer(server.url)


@pytest.mark.parametrize("address", ["address", "client"])
def test_stages_are_on_two_nodes(address: str, cluster: Any, folder: Path, expected: str) -> None:
    add_nodes(cluster, 2)
    at = getattr(cluster, address)
    flags = (*FLAGS, *NAMES, "--pipeline-parallel-size", "2", "--cluster", at)
    with process(*flags, command=SERVE, model=folder) as server:
        await_that(lambda: healthy(server.url) == 1, server)
        assert nodes_of(folder) == {0, 1}
        assert answer(server.url) == expected
        server.process.terminate()
        assert server.exit_code() == 0
    assert not nodes_of(folder)


def test_a_node_is_lost_and_its_replica_placed_elsewhere(
    cluster: Any, folder: Path, expected: str
) -> None:
    nodes = add_nodes(cluster, 3)
    flags = (*FLAGS, *NAMES, "--data-parallel-size", "2", "--cluster", cluster.address)
    with process(*flags, command=SERVE, model=folder) as server:
        await_that(lambda: healthy(server.url) == 2, server)
        before = nodes_of(folder)
        assert len(before) == 2
        lost = min(before)
        cluster.remove_node(nodes[lost], allow_graceful=False)
        assert answer(server.url) == expected  # of the other one
        await_that(lambda: nodes_of(folder) == {0, 1, 2} - {lost}, server)
        await_that(lambda: healthy(server.url) == 2, server)
        assert answer(server.url) == expected
        server.process.terminate()
        assert server.exit_code() == 0


def test_prefill_and_decode_workers_find_each_other_again(
    cluster: Any, folder: Path, expected: str
) -> None:
    nodes = add_nodes(cluster, 3)
    # Without the other a decode worker answers nothing.
    roles = ("--prefill-replicas", "1", "--prefill-fallback", "off")
    flags = (*FLAGS, *NAMES, *roles, "--cluster", cluster.address)
    with process(*flags, command=SERVE, model=folder) as server:
        await_that(lambda: healthy(server.url) == 1, server)
        await_that(lambda: server.stderr.count("is connected, blocks by tcp") == 1, server)
        assert answer(server.url) == expected
        (prefill,), (decode,) = nodes_of(folder, "prefill"), nodes_of(folder, "decode")
        assert prefill != decode
        cluster.remove_node(nodes[prefill], allow_graceful=False)
        await_that(lambda: server.stderr.count("is connected, blocks by tcp") == 2, server)
        assert nodes_of(folder, "prefill") == {0, 1, 2} - {prefill, decode}
        assert answer(server.url) == expected
        server.process.terminate()
        assert server.exit_code() == 0
    assert not nodes_of(folder)
