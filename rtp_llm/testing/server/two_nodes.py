# SPDX-License-Identifier: Apache-2.0
"""Two nodes that have one model: servers of this machine that know only each other's address."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rtp_llm.testing.kept_port import kept_port
from rtp_llm.testing.server_processes import REAL, Process, process

TENSOR = ("--tensor-parallel-size", "2")
STAGES = ("--pipeline-parallel-size", "2")


@contextmanager
def two_nodes() -> Iterator[tuple[str, ...]]:
    """Flags for both, with a port that is kept for them."""
    with kept_port() as port:
        yield "--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(port)


@contextmanager
def node(rank: int, *flags: str, model: Path, **environ: str) -> Iterator[Process]:
    with process(*flags, "--node-rank", str(rank), command=REAL, model=model, **environ) as running:
        yield running
