# SPDX-License-Identifier: Apache-2.0
"""Preparation processes of many servers in a test's process, without imports for each."""

from __future__ import annotations

import subprocess
from typing import Any

from rtp_llm.server.offload.fork_client import ForkClient
from rtp_llm.testing.fork_server import fork_server, forking_popen


def _popen(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
    server = fork_server("rtp_llm.server.offload.fork_server")
    return forking_popen(server)(*args, **options)


class QuickForkClient(ForkClient):
    """Whose process is a fork of one that has imported what it needs."""

    popen = staticmethod(_popen)
