# SPDX-License-Identifier: Apache-2.0
"""The three commands of docs/disaggregation.md, as they stand there, in a folder of their own."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from rtp_llm.testing.disagg.servers import DEMO, answer_of, ask_gauge, complete
from rtp_llm.testing.kept_port import kept_port
from rtp_llm.testing.server_processes import ROOT, environment

PAGE = ROOT / "docs" / "disaggregation.md"
PORTS = ("8101", "8111", "8102", "8088")
SERVERS = ("8101", "8102", "8088")  # prefill, decode, router
STORY = "Once upon a time there was a small engine that liked long stories. "


def documented_commands() -> list[list[str]]:
    """The indented lines under their heading, in words: three of ours and a question by curl."""
    section = PAGE.read_text().split("## Try it on one machine")[1].split("\n## ")[0]
    lines = section.replace("\\\n", "").splitlines()
    return [shlex.split(line) for line in lines if line.startswith(("    rtp-llm ", "    curl "))]


@pytest.fixture(scope="module")
def ports() -> Iterator[dict[str, int]]:
    """A free port for each port of the page, since other tests run at the same time."""
    with ExitStack() as stack:
        yield {port: stack.enter_context(kept_port()) for port in PORTS}


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory, ports: dict[str, int]) -> Iterator[None]:
    """All three are started at once, and are there."""
    folder = tmp_path_factory.mktemp("example")
    *commands, _ = documented_commands()
    assert [words[1] for words in commands] == ["serve", "serve", "route"]
    with ExitStack() as stack:
        for number, words in enumerate(commands):
            line = re.sub("|".join(PORTS), lambda found: str(ports[found[0]]), " ".join(words[1:]))
            log = stack.enter_context((folder / f"{number}.log").open("w"))
            running = subprocess.Popen(
                [sys.executable, "-m", "rtp_llm.cli", *line.replace("MODEL", str(DEMO)).split()],
                cwd=folder,
                env=environment(),
                stdout=log,
                stderr=log,
            )
            stack.callback(running.wait)
            stack.callback(running.terminate)
        wait_until_all_are_there(folder, ports)
        yield


def wait_until_all_are_there(folder: Path, ports: dict[str, int]) -> None:
    deadline = time.monotonic() + 120
    for port in SERVERS:
        while True:
            try:
                if httpx.get(f"http://127.0.0.1:{ports[port]}/health").status_code == 200:
                    break
            except httpx.TransportError:
                pass
            logs = "\n".join(each.read_text() for each in sorted(folder.glob("*.log")))
            assert time.monotonic() < deadline, logs
            time.sleep(0.1)


def test_the_documented_question_is_answered(example: None, ports: dict[str, int]) -> None:
    curl, url, *rest = documented_commands()[-1]
    assert (curl, rest[:3:2]) == ("curl", ["-H", "-d"])
    url = url.replace("8088", str(ports["8088"]))
    headers = dict([rest[1].split(": ")])
    answer = answer_of(url, content=rest[3], headers=headers)
    assert answer["choices"][0]["message"]["content"] == "12 + 30 = 42"


def test_requests_through_the_router_have_their_prompts_from_the_prefill_worker(
    example: None, ports: dict[str, int]
) -> None:
    prefill, decode, router = (f"http://127.0.0.1:{ports[each]}" for each in SERVERS)
    deadline = time.monotonic() + 60
    for number in itertools.count():
        prompt = f"{number}: {STORY}"
        text = complete(router, prompt)["text"]
        # The prefill worker's own port is one engine, which computes all of it.
        assert text == complete(prefill, prompt, cache_salt="apart")["text"]
        delivered = ask_gauge(decode, "rtp_llm_transfer_delivered_total")
        if delivered >= 2 and ask_gauge(prefill, "rtp_llm_transfer_prompts_total") >= 2:
            break
        assert time.monotonic() < deadline, httpx.get(f"{decode}/metrics").text
        time.sleep(0.3)  # metrics come with the heartbeat
