"""Two nodes that have one model: servers of this machine that know only each other's address."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from rtp_llm.testing.kept_port import kept_port
from rtp_llm.testing.server_processes import PATIENCE, REAL, Process, process

TENSOR = ("--tensor-parallel-size", "2")
STAGES = ("--pipeline-parallel-size", "2")
ASK: dict[str, Any] = {"max_tokens": 20, "ignore_eos": True}
PROMPTS = ["What is 12 + 30?", "Once upon a time", "a", "def add(a, b):"]


@contextmanager
def two_nodes() -> Iterator[tuple[str, ...]]:
    """Flags for both, with a port that is kept for them."""
    with kept_port() as port:
        yield "--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(port)


@contextmanager
def node(rank: int, *flags: str, model: Path, **environ: str) -> Iterator[Process]:
    with process(*flags, "--node-rank", str(rank), command=REAL, model=model, **environ) as running:
        yield running


def answers(url: str, **body: Any) -> list[str]:
    asked = {"model": "tiny", "prompt": PROMPTS, **ASK, **body}
    found = httpx.post(f"{url}/v1/completions", json=asked, timeout=PATIENCE)
    assert found.status_code == 200, found.text
    return [choice["text"] for choice in found.json()["choices"]]
