# SPDX-License-Identifier: Apache-2.0
"""NIXL: one-sided reads by UCX, which chooses among RDMA, NVLink, shared memory and TCP."""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rtp_llm.config.roles import find_module
from rtp_llm.device import Device
from rtp_llm.disagg.transports.interface import HOST, ReadError, Region
from rtp_llm.disagg.transports.match import RegionTable

# How often the agent of a device's shared memory looks after its connections.
_TEND_SECONDS = 0.001


class NixlLibrary:
    """Memory of the host and of one device by NIXL's UCX backend; ``UCX_TLS`` says by what, as
    everywhere.

    For a device the agents have no threads of NIXL's own: those call the driver without a context
    and crash (https://github.com/ai-dynamo/nixl/issues/2102, open in 1.5.1). A reader is driven by
    who polls it, what is shared by a thread of ours.
    """

    def __init__(self, device: Device | None = None) -> None:
        """``device`` None: host memory only."""
        # A peer that is cut off has a warning for each of its pieces otherwise.
        os.environ.setdefault("UCX_LOG_LEVEL", "error")
        # UCX takes TCP for reads between GPUs without NVLink otherwise.
        os.environ.setdefault("UCX_CUDA_IPC_ENABLE_GET_ZCOPY", "on")
        self._device = device
        self._api: Any = importlib.import_module(f"{find_module('nixl')}._api")

    def attach(self) -> None:
        """See Library: agents of a device need its context."""
        if self._device is not None:
            self._device.make_current()

    def share(self, regions: Sequence[Region], host: str) -> NixlShared:
        """See Library; NIXL finds out the host's addresses by itself."""
        return NixlShared(self._agent(regions), self.attach if self._device else None)

    def connect(
        self, address: bytes, theirs: Sequence[Region], ours: Sequence[Region], host: str
    ) -> NixlReader:
        """See Library. An agent for each peer: the end of an agent is what stops its transfers."""
        return NixlReader(self._agent(ours), address, theirs, ours)

    def _agent(self, regions: Sequence[Region]) -> Any:
        self.attach()
        threads = self._device is None
        try:
            config = self._api.nixl_agent_config(enable_prog_thread=threads, backends=["UCX"])
            agent = self._api.nixl_agent(f"rtp-llm-{uuid.uuid4().hex}", config)
            for kind in ("DRAM", "VRAM"):
                rows = [
                    (base, size, max(device, 0), "")
                    for base, size, device in regions
                    if _kind(device) == kind
                ]
                if rows:
                    agent.register_memory(rows, kind)
        except Exception as error:
            raise ReadError(f"NIXL has no agent for us: {error!r}") from error
        return agent


class NixlShared:
    """Registered memory of one agent."""

    def __init__(self, agent: Any, attach: Callable[[], None] | None = None) -> None:
        """``attach``: of a thread that has to tend the agent; None: it tends itself."""
        self._agent: Any = agent
        self.address: bytes = agent.get_agent_metadata()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        if attach is not None:
            self._thread = threading.Thread(
                target=self._tend, args=(attach,), name="kv share", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """See Shared."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        self._agent = None

    def _tend(self, attach: Callable[[], None]) -> None:
        """Answer peers that connect, or read by a way that needs both sides."""
        attach()
        while not self._closed.wait(_TEND_SECONDS):
            self._agent.get_new_notifs()


class NixlReader:
    """An agent that knows one other agent."""

    def __init__(
        self, agent: Any, address: bytes, theirs: Sequence[Region], ours: Sequence[Region]
    ) -> None:
        self._agent: Any = agent
        self._theirs, self._ours = RegionTable(theirs), RegionTable(ours)
        self._readings: set[NixlReading] = set()
        try:
            self._peer = agent.add_remote_agent(address)
        except Exception as error:
            raise ReadError(
                f"no NIXL agent can be reached by what the peer said: {error!r}"
            ) from error

    def read(self, pieces: NDArray[np.int64]) -> NixlReading:
        """See Reader."""
        agent = self._agent
        try:
            theirs, ours = (
                agent.get_xfer_descs(*_described(pieces[:, side], pieces[:, 2], table))
                for side, table in enumerate((self._theirs, self._ours))
            )
            handle = agent.initialize_xfer("READ", ours, theirs, self._peer)
            reading = NixlReading(agent, handle, self._readings)
            agent.transfer(handle)
        except Exception as error:
            raise ReadError(f"NIXL begins no transfer: {error!r}") from error
        return reading

    def close(self) -> None:
        """See Reader. Released handles alone go on to write: UCX over TCP cancels nothing."""
        for reading in list(self._readings):
            reading.release()
        self._agent = None


class NixlReading:
    """A transfer's handle."""

    def __init__(self, agent: Any, handle: Any, readings: set[NixlReading]) -> None:
        self._agent, self._handle, self._readings = agent, handle, readings
        readings.add(self)

    def poll(self) -> bool:
        """See Reading."""
        try:
            state = self._agent.check_xfer_state(self._handle)
        except Exception as error:
            raise ReadError(f"NIXL: {error!r}") from error
        if state == "ERR":
            raise ReadError("NIXL: the transfer has failed")
        if state == "DONE":
            self.release()
        return bool(state == "DONE")

    def release(self) -> None:
        """Release the agent."""
        self._readings.discard(self)
        with contextlib.suppress(Exception):  # the agent's end releases it then
            self._agent.release_xfer_handle(self._handle)
        self._agent = self._handle = None


def _kind(device: int) -> str:
    return "DRAM" if device == HOST else "VRAM"


def _described(
    addresses: NDArray[np.int64], sizes: NDArray[np.int64], table: RegionTable
) -> tuple[NDArray[np.int64], str]:
    """Address, bytes and device of each piece, and the kind of their memory, as NIXL reads them."""
    devices = table.devices(addresses)
    if (devices != devices[0]).any():
        raise ValueError("pieces of one reading lie on several devices")
    rows = np.column_stack([addresses, sizes, np.maximum(devices, 0)])
    return rows, _kind(int(devices[0]))
