# SPDX-License-Identifier: Apache-2.0
"""The fork server of a server that is killed as it starts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import msgspec
import pytest

from rtp_llm.server.offload.fork_server import Hello
from rtp_llm.testing.server.serving import demo_folder
from rtp_llm.testing.server_processes import environment


@pytest.mark.parametrize("greets", [False, True], ids=["before", "after"])
def test_it_ends_without_a_word(greets: bool) -> None:
    """Before it is said what to load, or while it loads."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "rtp_llm.server.offload.fork_server", str(theirs.fileno())]
    with subprocess.Popen(
        command, env=environment(), pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, text=True
    ) as child:
        theirs.close()
        if greets:
            hello = Hello(str(demo_folder()), None, os.getpid())
            ours.send(msgspec.msgpack.encode(hello))
        ours.close()
        _, said = child.communicate(timeout=120)
    assert (child.returncode, said) == (0, "")
