# SPDX-License-Identifier: Apache-2.0
"""A prefill worker in a process of its own, whose tensor-parallel ranks have a group of their own.

Its argument is a JSON object of the folder and the settings; it writes its address.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rtp_llm.testing.disagg.workers import Worker
from rtp_llm.testing.fork_server import ENGINES, fork_server, forking_popen


@dataclass(frozen=True)
class PrefillProcess:
    """It steps by itself."""

    process: subprocess.Popen[str]
    address: str


@contextmanager
def prefill_process(
    folder: Path, environ: Mapping[str, str] | None = None, **settings: Any
) -> Iterator[PrefillProcess]:
    """One that serves; `environ`: what it has besides this process's environment."""
    asked = json.dumps({"folder": str(folder), **settings})
    process = forking_popen(fork_server(*ENGINES))(
        [sys.executable, "-m", __name__, asked],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(environ or {})},
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address, "it does not start"
            yield PrefillProcess(process, address)
        finally:
            process.kill()


def main() -> None:
    """Serve for ever."""
    settings = json.loads(sys.argv[1])
    place = {"role": "prefill", "prefill_address": "127.0.0.1:0"}
    worker = Worker(settings.pop("folder"), **place, **settings)
    print(worker.built.ready.prefill_address, flush=True)
    while True:
        worker.step()
        time.sleep(0.0005)


if __name__ == "__main__":
    main()
