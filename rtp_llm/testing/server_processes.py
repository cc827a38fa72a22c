# SPDX-License-Identifier: Apache-2.0
"""Servers as processes, and streams read by threads, for tests."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from rtp_llm.engine.client.launch import SPARE
from rtp_llm.testing.fork_server import ENGINES, fork_server, forking_popen
from rtp_llm.testing.server.serving import CHAT, demo_folder, events

ROOT = Path(__file__).parents[2]
FAKE = [sys.executable, "-m", "rtp_llm.testing.server.fake_server"]
TIMEOUT = 240.0  # timeout in seconds for expected events; never reached in practice
REAL = [sys.executable, "-m", "rtp_llm.testing.server.relaxed_server"]

_SERVER = ("rtp_llm.server.lifecycle", "rtp_llm.server.offload.fork_server")
_IMPORTS = {
    FAKE[-1]: (*_SERVER, "rtp_llm.testing.engine.answering_engine"),
    REAL[-1]: (*_SERVER, "rtp_llm.commands.serve", *ENGINES),
}
_MODEL = re.compile(r',model_name="[^"]*"|model_name="[^"]*",?')


def environment() -> dict[str, str]:
    """The environment in which a child process finds this package."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path}


def run_without_network(module: str, *arguments: str) -> dict[str, Any]:
    """Run a module of this package with only a loopback network; returns its JSON output.

    The module must report a "code" of 0.
    """
    done = subprocess.run(
        ["unshare", "--map-root-user", "--net", sys.executable, "-m", module, *arguments],
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    said: dict[str, Any] = json.loads(done.stdout)
    assert said["code"] == 0, said
    return said


def _popen_of(command: list[str]) -> type[subprocess.Popen[str]]:
    """What starts FAKE and REAL: by forks of a process that has imported what they import."""
    if command not in (FAKE, REAL):
        return subprocess.Popen
    return forking_popen(fork_server(*_IMPORTS[command[-1]]))


class Process:
    """A running server, its output collected by threads."""

    def __init__(
        self,
        *flags: str,
        command: list[str] = FAKE,
        model: Path | None = None,
        new_group: bool = False,
        base: Mapping[str, str] | None = None,
        **environ: str,
    ) -> None:
        # Those with an environment of their own want a start of their own, too.
        popen = subprocess.Popen if base else _popen_of(command)
        self.process = popen(
            [*command, str(model or demo_folder()), "--port", "0", *flags],
            env={**(base or environment()), **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=new_group,
        )
        self.lines: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._readers = [
            threading.Thread(target=self._collect, args=(name,), daemon=True) for name in self.lines
        ]
        for reader in self._readers:
            reader.start()

    def _collect(self, name: str) -> None:
        for line in getattr(self.process, name):
            self.lines[name].append(line)

    def wait_for(self, text: str, where: str = "stdout") -> str:
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            for line in list(self.lines[where]):
                if text in line:
                    return line
            if self.process.poll() is not None and not any(r.is_alive() for r in self._readers):
                break
            time.sleep(0.01)
        raise AssertionError(f"no {text!r} in {self.lines}")

    @property
    def url(self) -> str:
        return self.wait_for("is ready: ").split()[-1]

    def stop_at_once(self) -> None:
        """Stop the process until it gets SIGCONT; it does not even handle signals."""
        self.process.send_signal(signal.SIGSTOP)
        state = Path(f"/proc/{self.process.pid}/stat")
        while state.read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.005)

    def exit_code(self) -> int:
        return self.process.wait(TIMEOUT)

    @property
    def stderr(self) -> str:
        return "".join(self.lines["stderr"])


@contextmanager
def process(*flags: str, **environ: Any) -> Iterator[Process]:
    running = Process(*flags, **environ)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()


class Stream:
    """A streamed answer, read by a thread; waits for its first byte unless ``begun`` is False."""

    def __init__(self, url: str, *, begun: bool = True, **body: Any) -> None:
        self.body = {**CHAT, "stream": True, "ignore_eos": True, **body}
        self.text = ""
        self.status = 0
        self.thread = threading.Thread(target=self._read, args=(url,), daemon=True)
        self.thread.start()
        while begun and not self.text and self.thread.is_alive():
            time.sleep(0.005)

    def _read(self, url: str) -> None:
        with httpx.stream(
            "POST", f"{url}/v1/chat/completions", json=self.body, timeout=TIMEOUT
        ) as got:
            self.status = got.status_code
            for part in got.iter_text():
                self.text += part

    def events(self) -> list[Any]:
        self.thread.join(TIMEOUT)
        return events(self.text)


def children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in listed]


def open_descriptors(server: Process) -> int:
    """Number of open files, sockets and pipes of the server process."""
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def status(url: str) -> str:
    """The status that /health of the server at `url` reports."""
    return str(httpx.get(f"{url}/health").json()["status"])


def read_metrics(url: str) -> dict[str, float]:
    """The numbers of its /metrics, by name and labels."""
    return parse_metrics(httpx.get(f"{url}/metrics").text)


def parse_metrics(text: str) -> dict[str, float]:
    """The values in the text of /metrics, by name and labels except the model name."""
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
    return {_MODEL.sub("", name).replace("{}", ""): float(value) for name, value in lines}


def engines(pid: int) -> list[int]:
    """The children of a server that are engine processes."""
    # A process that was just forked has the server's command line; one that is about to exec or has
    # ended has none.
    others = ("server.offload.fork_server", command_line(pid))
    lines = {each: command_line(each) for each in children(pid)}
    found = [each for each, line in lines.items() if line and not any(o in line for o in others)]
    waiting = spares(pid)
    return [each for each in found if each not in waiting]


def spares(pid: int) -> list[int]:
    """The children of a server that wait for its engine's end."""
    found = []
    for each in children(pid):
        _, _, arguments = command_line(each).partition("\0-m\0")
        _, folder, *more = [*arguments.rstrip("\0").split("\0"), ""]
        # An engine made of a spare has the same arguments, and takes requests.
        if SPARE in more and not Path(folder, "requests").exists():
            found.append(each)
    return found


def other_ranks(engine: int) -> list[int]:
    """The processes that an engine process started for other ranks of its model."""
    return [each for each in children(engine) if "rank_process" in command_line(each)]


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def command_line(pid: int) -> str:
    """The command line of a process; empty if it has just ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
