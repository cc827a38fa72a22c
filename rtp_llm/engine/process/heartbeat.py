# SPDX-License-Identifier: Apache-2.0
"""The engine process's background threads: its heartbeat, and the watch on its parent."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

import msgspec

from rtp_llm.distributed.membership import Membership
from rtp_llm.engine.messages import EngineStats

if TYPE_CHECKING:
    from rtp_llm.engine.address import EngineAddress
    from rtp_llm.engine.process.sender import Sender

HEARTBEAT_SECONDS = 0.25
_PARENT_IS_GONE = 3


class Heartbeat(threading.Thread):
    """Sends the engine's metrics every quarter of a second, however long a step takes.

    ``source`` gives the metrics; until it is set they are all zero.
    """

    def __init__(self, sender: Sender, address: EngineAddress) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self.source: Callable[[], EngineStats] = EngineStats
        self._sender = sender
        self._address = address
        self._parent = os.getppid()

    def report_loading(self, loaded: int, total: int) -> None:
        """Until the engine has metrics: how many bytes of the checkpoint are loaded."""
        stats = EngineStats(loaded_bytes=loaded, bytes_to_load=total)
        self.source = lambda: stats

    def run(self) -> None:
        """Beat until the process ends."""
        while True:
            metrics = self.source()
            self._sender.send(msgspec.structs.replace(metrics, resident_bytes=_resident_bytes()))
            time.sleep(HEARTBEAT_SECONDS)
            if os.getppid() != self._parent:
                end_alone(self._address)


def end_with_parent(address: EngineAddress) -> None:
    """End this process at once when the parent's end of standard input closes."""

    def wait() -> None:
        # Not through sys.stdin: a thread inside it would hold its lock at the interpreter's end.
        while os.read(0, 4096):
            pass
        end_alone(address)

    threading.Thread(target=wait, name="parent", daemon=True).start()


def end_alone(address: EngineAddress) -> NoReturn:
    """The parent is gone, and with it the one who would have removed the sockets."""
    address.remove()
    if membership := Membership.read(os.environ):
        membership.remove_rendezvous()
    os._exit(_PARENT_IS_GONE)


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
