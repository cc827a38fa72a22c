# SPDX-License-Identifier: Apache-2.0
"""Mooncake: one-sided reads by its transfer engine, over RDMA or TCP."""

from __future__ import annotations

import importlib
import socket
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rtp_llm.config.roles import join_address
from rtp_llm.disagg.transports.interface import ReadError, Region

# A documentation address: nothing is sent there, only the way to it is looked up.
_ELSEWHERE = "192.0.2.1"
# A call waits for its bytes, in a thread.
_THREADS = 2


class MooncakeLibrary:
    """Host memory by engines that find each other without a server of metadata."""

    def __init__(self, protocol: str) -> None:
        """``protocol``: rdma or tcp."""
        self._protocol = protocol
        self._engines: Any = importlib.import_module("mooncake.engine")

    def share(self, regions: Sequence[Region], host: str) -> MooncakeShared:
        """See Library."""
        wildcard = host in ("0.0.0.0", "::")
        return MooncakeShared(self._engine(regions, own_host(_ELSEWHERE) if wildcard else host))

    def attach(self) -> None:
        """See Library; its engines do not care."""

    def connect(
        self, address: bytes, theirs: Sequence[Region], ours: Sequence[Region], host: str
    ) -> MooncakeReader:
        """See Library. An engine for each peer: failed transfers go on to write until its end."""
        engine = self._engine(ours, own_host(host))
        return MooncakeReader(engine, join_address(host, address.decode(errors="replace")))

    def _engine(self, regions: Sequence[Region], host: str) -> Any:
        engine = self._engines.TransferEngine()
        if engine.initialize(host, "P2PHANDSHAKE", self._protocol, "") != 0:
            raise ReadError(f"Mooncake's engine does not start by {self._protocol} on {host}")
        bases, sizes, _ = zip(*regions, strict=True)
        if engine.batch_register_memory(list(bases), list(sizes)) != 0:
            raise ReadError("Mooncake does not register our memory")
        return engine


class MooncakeShared:
    """Registered memory of one engine; peers know the host and are told the port."""

    def __init__(self, engine: Any) -> None:
        self._engine: Any = engine
        self.address: bytes = str(engine.get_rpc_port()).encode()

    def close(self) -> None:
        """See Shared."""
        self._engine = None


class MooncakeReader:
    """An engine that reads from one other engine."""

    def __init__(self, engine: Any, peer: str) -> None:
        self._engine: Any = engine
        self._peer = peer
        self._threads = ThreadPoolExecutor(_THREADS, "mooncake")

    def read(self, pieces: NDArray[np.int64]) -> MooncakeReading:
        """See Reader."""
        theirs, ours, sizes = pieces.T.tolist()
        call = self._engine.batch_transfer_sync_read
        return MooncakeReading(self._threads.submit(call, self._peer, ours, theirs, sizes))

    def close(self) -> None:
        """See Reader. Waits for calls under way, which Mooncake itself ends after a second."""
        self._threads.shutdown(cancel_futures=True)
        self._engine = None


class MooncakeReading:
    """A call that waits."""

    def __init__(self, call: Future[int]) -> None:
        self._call = call

    def poll(self) -> bool:
        """See Reading."""
        if not self._call.done():
            return False
        if (error := self._call.exception()) is not None or self._call.result() != 0:
            raise ReadError(f"Mooncake: the transfer has failed ({error or self._call.result()})")
        return True


def own_host(toward: str) -> str:
    """The address of this machine from which packets to another one leave."""
    family = socket.AF_INET6 if ":" in toward else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((toward, 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
