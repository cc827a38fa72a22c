# SPDX-License-Identifier: Apache-2.0
"""Settings of several machines that do not fit together are refused, with the numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rtp_llm.config.nodes import check_nodes, master_address, node_key
from rtp_llm.config.options import SettingsError
from rtp_llm.config.refusals import get_refusal
from rtp_llm.config.roles import check_one_engine, check_role
from rtp_llm.config.settings import Settings

TWO: dict[str, Any] = {"nnodes": 2, "master_addr": "127.0.0.1", "tensor_parallel_size": 2}
CASES: list[tuple[dict[str, Any], str]] = [
    ({"node_rank": 1}, "node_rank: not read with nnodes=1"),
    ({"master_addr": "10.0.0.1"}, "master_addr: not read with nnodes=1"),
    (
        {**TWO, "node_rank": 2},
        r"node_rank: 2 is not below nnodes=2; nodes are numbered from 0 to 1",
    ),
    ({**TWO, "master_addr": ""}, "master_addr: the other nodes come to node 0"),
    ({**TWO, "master_addr": "a b"}, "master_addr: 'a b:29501' is not an address"),
    ({**TWO, "master_addr": "host:99999"}, "master_addr: 'host:99999' is not an address"),
    ({**TWO, "worker_key_file": "/nowhere"}, "worker_key_file: cannot read"),
]
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        "--nnodes that does not divide the ranks",
        {**TWO, "tensor_parallel_size": 3},
        "3 ranks = 2 x 1 + 1",
    ),
    (
        "--nnodes with --data-parallel-size",
        {**TWO, "data_parallel_size": 2},
        "nnodes=2, data_parallel_size=2",
    ),
    ("--nnodes with --role", {**TWO, "role": "prefill"}, "nnodes=2, role=prefill"),
    (
        "--nnodes without --worker-key-file",
        {**TWO, "master_addr": "10.0.0.1"},
        "master_addr=10.0.0.1",
    ),
]


@pytest.mark.parametrize(("chosen", "reason"), CASES)
def test_what_does_not_fit(chosen: dict[str, Any], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        check_nodes(Settings(**chosen))


@pytest.mark.parametrize(("name", "chosen", "numbers"), REFUSED)
def test_what_the_table_refuses(name: str, chosen: dict[str, Any], numbers: str) -> None:
    with pytest.raises(SettingsError) as refused:
        check_nodes(Settings(**chosen))
    assert str(refused.value) == f"{get_refusal('ranks', name).message} ({numbers})"


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("node-0", ("node-0", 29501)),
        ("10.0.0.1:5000", ("10.0.0.1", 5000)),
        ("fd00::1", ("fd00::1", 29501)),
        ("[fd00::1]", ("fd00::1", 29501)),
        ("[fd00::1]:5000", ("fd00::1", 5000)),
    ],
)
def test_forms_of_an_address(address: str, found: tuple[str, int]) -> None:
    assert master_address(Settings(master_addr=address)) == found


def test_machines_that_others_reach_share_a_key(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("0123456789abcdef\n")
    key.chmod(0o600)
    settings = Settings(**{**TWO, "master_addr": "10.0.0.1"}, worker_key_file=str(key))
    check_role(settings)
    check_nodes(settings)
    assert node_key(settings) == b"0123456789abcdef"
    assert node_key(Settings(**TWO)) == b""


def test_an_llm_is_node_0() -> None:
    check_one_engine(Settings(**TWO))
    with pytest.raises(SettingsError, match="node_rank: an LLM is node 0"):
        check_one_engine(Settings(**TWO, node_rank=1))
