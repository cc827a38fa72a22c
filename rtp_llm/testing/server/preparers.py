# SPDX-License-Identifier: Apache-2.0
"""Preparation processes of many servers in a test's process, without imports for each."""

from __future__ import annotations

import atexit
import subprocess
from functools import cache
from typing import Any

from rtp_llm.server.offload.fork_client import ForkClient
from rtp_llm.testing.fork_server import ForkServer, forking_popen


@cache
def _server() -> ForkServer:
    server = ForkServer(("rtp_llm.server.offload.fork_server",))
    atexit.register(server.close)
    return server


def _popen(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
    return forking_popen(_server())(*args, **options)


class QuickForkClient(ForkClient):
    """Whose process is a fork of one that has imported what it needs."""

    popen = staticmethod(_popen)
