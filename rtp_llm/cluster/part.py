# SPDX-License-Identifier: Apache-2.0
"""Runs one node of one replica on a machine of the cluster, as a separate process."""

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
_MAX_BYTES = 65536


class Place(NamedTuple):
    """Where a part's process may listen. ``port``: its HTTP server; ``meeting_port``: where
    other parts and other workers reach it."""

    host: str
    port: int
    meeting_port: int


class Part:
    """A Ray actor. Its methods, such as `wait` and `health`, may run concurrently."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        # A directory that only its owner may enter.
        self._folder = tempfile.TemporaryDirectory(prefix="rtp_llm_part_")
        self._notifying, self._notified = threading.Lock(), -1
        self._held: list[socket.socket] = []

    def place(self) -> Place:
        """An address of this machine that the other machines can reach, with ports for `start`.

        The ports stay bound here, so the system does not give them to another program; the
        server process can still bind them, since servers set SO_REUSEADDR.
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
            self.notify(0, [])
            own["RTP_LLM_PREFILL_WORKERS"] = f"@{self._file('prefill_workers')}"
        self._process = subprocess.Popen(
            bound_command("serve", model),
            env={**os.environ, **environ, **own},
            stdin=subprocess.DEVNULL,
            # Ray forwards output to the driver's user, who should see "is ready" from the router.
            stdout=subprocess.DEVNULL,
        )

    def notify(self, number: int, prefill_workers: Sequence[str]) -> None:
        """Set the prefill workers that a decode worker may use; the largest ``number`` wins."""
        with self._notifying:
            if number < self._notified:
                return
            self._notified, new = number, self._file("prefill_workers.new")
            new.write_text("".join(f"{each}\n" for each in prefill_workers))
            new.replace(self._file("prefill_workers"))

    def stop(self) -> None:
        """End the process, and release its ports and temporary files."""
        if self._process is not None:
            self._process.kill()
        for held in self._held:
            held.close()
        self._folder.cleanup()

    def _file(self, name: str) -> Path:
        return Path(self._folder.name) / name

    def health(self) -> Health:
        """The process's health, as reported by its HTTP server."""
        connection = http.client.HTTPConnection(
            self._place.host, self._place.port, timeout=_HEALTH_SECONDS
        )
        try:
            connection.request("GET", "/health")
            answer = connection.getresponse()
            body = answer.read(_MAX_BYTES)
        except (OSError, http.client.HTTPException):  # not listening yet
            return Health(None, "starting")
        finally:
            connection.close()
        return Health(answer.status, health_words(answer.status, body))

    def wait(self) -> int:
        """Wait for the process to end and return its exit code."""
        assert self._process is not None
        return self._process.wait()


def new_key() -> str:
    """A shared secret by which nodes of one replica, or workers of several roles, authenticate."""
    return secrets.token_hex(32)
