# SPDX-License-Identifier: Apache-2.0
"""What runs on a machine of the cluster: one node of one replica, as a process of its own."""

from __future__ import annotations

import http.client
import os
import secrets
import socket
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rtp_llm.bound_child import bound_command
from rtp_llm.router.health import Health, health_words

_HEALTH_SECONDS = 2.0
_MOST_BYTES = 65536


class Place(NamedTuple):
    """Where a part's process may listen. ``port``: of its HTTP server; ``meeting_port``: of
    what other parts and other workers ask of it."""

    host: str
    port: int
    meeting_port: int


class Part:
    """An actor. `wait`, `health` and others are called beside each other."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        # Which its owner alone may enter.
        self._folder = tempfile.TemporaryDirectory(prefix="rtp_llm_part_")
        self._telling, self._told = threading.Lock(), -1
        self._held: list[socket.socket] = []

    def place(self) -> Place:
        """An address of this machine that the others reach, with ports for `start`.

        They stay bound here, so the system gives them to no other program; the process gets them
        all the same, since servers set SO_REUSEADDR.
        """
        import ray

        host = ray.util.get_node_ip_address()
        port, meeting_port = (self._hold_port(host) for _ in range(2))
        self._place = Place(host, port, meeting_port)
        return self._place

    def _hold_port(self, host: str) -> int:
        held = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self._held.append(held)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((host, 0))
        return int(held.getsockname()[1])

    def start(self, model: str, environ: Mapping[str, str], key: str) -> None:
        """Begin `rtp-llm serve MODEL` with settings in ``environ``; workers and nodes share
        ``key``."""
        own: dict[str, str] = {}
        if key:
            path = self._file("key")
            path.touch(mode=0o600)
            path.write_text(key)
            own["RTP_LLM_WORKER_KEY_FILE"] = str(path)
        if environ.get("RTP_LLM_ROLE") == "decode":
            self.tell(0, [])
            own["RTP_LLM_PREFILL_WORKERS"] = f"@{self._file('prefill_workers')}"
        self._process = subprocess.Popen(
            bound_command("serve", model),
            env={**os.environ, **environ, **own},
            stdin=subprocess.DEVNULL,
            # Ray shows the driver's user what is printed: "is ready" there is the router's.
            stdout=subprocess.DEVNULL,
        )

    def tell(self, number: int, prefill_workers: Sequence[str]) -> None:
        """Whom a decode worker may ask from now on; the list of the largest ``number`` counts."""
        with self._telling:
            if number < self._told:
                return
            self._told, new = number, self._file("prefill_workers.new")
            new.write_text("".join(f"{each}\n" for each in prefill_workers))
            new.replace(self._file("prefill_workers"))

    def stop(self) -> None:
        """End the process, and leave nothing behind."""
        if self._process is not None:
            self._process.kill()
        for held in self._held:
            held.close()
        self._folder.cleanup()

    def _file(self, name: str) -> Path:
        return Path(self._folder.name) / name

    def health(self) -> Health:
        """What the process says of it at its port of HTTP."""
        asked = http.client.HTTPConnection(
            self._place.host, self._place.port, timeout=_HEALTH_SECONDS
        )
        try:
            asked.request("GET", "/health")
            answer = asked.getresponse()
            body = answer.read(_MOST_BYTES)
        except (OSError, http.client.HTTPException):  # it does not listen yet
            return Health(None, "starting")
        finally:
            asked.close()
        return Health(answer.status, health_words(answer.status, body))

    def wait(self) -> int:
        """Its exit code."""
        assert self._process is not None
        return self._process.wait()


def new_key() -> str:
    """What nodes of one replica, or workers of several roles, prove to each other to have."""
    return secrets.token_hex(32)
