"""What runs on a machine of the cluster: one node of one replica, as a process of its own."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from rtp_llm.bound_child import bound_command

_READY = "is ready: "


class Part:
    """An actor. `wait`, `url` and others are called beside each other."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        # Which its owner alone may enter.
        self._folder = tempfile.TemporaryDirectory(prefix="rtp_llm_part_")
        self._telling, self._told = threading.Lock(), -1

    def address(self) -> tuple[str, int]:
        """An address of this machine that the others reach, with a port that is free now."""
        import ray

        host = ray.util.get_node_ip_address()
        with socket.create_server((host, 0)) as found:
            return host, int(found.getsockname()[1])

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
            stdout=subprocess.PIPE,
            text=True,
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
        self._folder.cleanup()

    def _file(self, name: str) -> Path:
        return Path(self._folder.name) / name

    def url(self) -> str:
        """Where it serves; empty when it ended before. Waits for that."""
        assert self._process is not None and self._process.stdout is not None
        found = ""
        for line in self._process.stdout:
            if _READY in line:
                found = line.split()[-1]
                break
        return found

    def wait(self) -> int:
        """Its exit code."""
        assert self._process is not None
        return self._process.wait()


def new_key() -> str:
    """What nodes of one replica, or workers of several roles, prove to each other to have."""
    return secrets.token_hex(32)
