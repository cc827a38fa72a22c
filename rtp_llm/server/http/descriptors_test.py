# SPDX-License-Identifier: Apache-2.0
"""System limits: excess connections get an error, and limits that are too low are refused."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from rtp_llm.config.settings import Settings
from rtp_llm.engine.messages import describe_memory_error
from rtp_llm.engine.process.main import _describe
from rtp_llm.server.http import descriptors
from rtp_llm.server.http.descriptors import Shares, lowest_free, share_descriptors
from rtp_llm.testing.server.serving import demo_folder
from rtp_llm.testing.server_processes import FAKE, environment


@pytest.mark.parametrize(
    ("soft", "per_connection", "shares"),
    [
        (64, 1, Shares(28, 4, 48)),
        (64, 2, Shares(14, 4, 48)),
        (256, 1, Shares(172, 16, 192)),
        (1024, 1, Shares(748, 64, 768)),
        (8192 + 1024 + 64, 1, Shares(8192, 256, 8192 + 64)),
        (resource.RLIM_INFINITY, 2, Shares(8192, 256, sys.maxsize)),
    ],
)
def test_connections_share_the_descriptors(
    monkeypatch: pytest.MonkeyPatch, soft: int, per_connection: int, shares: Shares
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    monkeypatch.setattr(descriptors, "lowest_free", lambda: 20)
    assert share_descriptors(Settings(), per_connection) == shares


def test_the_lowest_free_descriptor() -> None:
    before = lowest_free()
    with Path(os.devnull).open("rb") as file:
        assert file.fileno() == before < lowest_free()
    assert lowest_free() == before


def limited(limit: str, *command: str) -> subprocess.CompletedProcess[str]:
    shell = ["bash", "-c", f'{limit}; exec "$@"', "bash", *command]
    return subprocess.run(shell, env=environment(), capture_output=True, text=True, timeout=240)


def test_too_few_files_are_refused_in_one_line() -> None:
    done = limited("ulimit -n 20", *FAKE, str(demo_folder()), "--port", "0")
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "this process may open 20 files, a server needs at least 64: raise" in done.stderr


def test_no_more_memory_is_said_in_words() -> None:
    code = (
        "from rtp_llm.engine.messages import describe_memory_error as words; "
        "print(words('loading the model'))"
    )
    bounded = limited("ulimit -v 1500000", sys.executable, "-c", code).stdout
    assert bounded == (
        "out of memory while loading the model: this process may take 1464 MiB of address space "
        "(ulimit -v); raise that, or lift it: ulimit -v unlimited\n"
    )


def test_the_engine_says_what_it_was_doing() -> None:
    assert _describe(MemoryError()) == describe_memory_error("loading the model")
    assert _describe(MemoryError(), serving=True) == describe_memory_error("generating")
