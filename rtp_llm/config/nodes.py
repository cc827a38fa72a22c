# SPDX-License-Identifier: Apache-2.0
"""Consistency checks of multi-node settings, made before start-up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rtp_llm.config.options import SettingsError
from rtp_llm.config.refusals import get_refusal
from rtp_llm.config.roles import is_loopback, split_address
from rtp_llm.config.worker_key import read_worker_key

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings

_ONLY_THERE = ("node_rank", "master_addr", "master_port")


def check_nodes(settings: Settings) -> None:
    """Raise SettingsError naming inconsistent settings, with the numbers."""
    nodes, ranks = settings.nnodes, settings.num_ranks
    if nodes == 1:
        for name in _ONLY_THERE:
            if getattr(settings, name) != getattr(type(settings), name):
                raise SettingsError(f"{name}: not read with nnodes=1; leave it out, or set nnodes")
        return
    if settings.node_rank >= nodes:
        raise SettingsError(
            f"node_rank: {settings.node_rank} is not below nnodes={nodes}; nodes are numbered "
            f"from 0 to {nodes - 1}"
        )
    if not settings.master_addr:
        raise SettingsError(
            "master_addr: the other nodes come to node 0; give all nodes its address"
        )
    host, _ = master_address(settings)
    if settings.data_parallel_size > 1:
        said = f"nnodes={nodes}, data_parallel_size={settings.data_parallel_size}"
        _refuse("--nnodes with --data-parallel-size", said)
    if settings.role != "both":
        _refuse("--nnodes with --role", f"nnodes={nodes}, role={settings.role}")
    if ranks % nodes:
        said = f"{ranks} ranks = {nodes} x {ranks // nodes} + {ranks % nodes}"
        _refuse("--nnodes that does not divide the ranks", said)
    if settings.worker_key_file is None and not is_loopback(host):
        _refuse("--nnodes without --worker-key-file", f"master_addr={settings.master_addr}")
    node_key(settings)


def master_address(settings: Settings) -> tuple[str, int]:
    """Host and port at which the other nodes connect to node 0."""
    address, port = settings.master_addr, settings.master_port
    if address.startswith("[") and address.endswith("]"):
        address = address[1:-1]
    if address.startswith("[") or address.count(":") == 1:
        return split_address("master_addr", address)
    split_address("master_addr", f"[{address}]:{port}" if ":" in address else f"{address}:{port}")
    return address, port


def node_key(settings: Settings) -> bytes:
    """The shared secret of the nodes; empty if only this machine can connect."""
    return read_worker_key(settings.worker_key_file) if settings.worker_key_file else b""


def _refuse(name: str, said: str) -> None:
    raise SettingsError(f"{get_refusal('ranks', name).message} ({said})")
