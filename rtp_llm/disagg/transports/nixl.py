"""NIXL: one-sided reads by UCX, which chooses among RDMA, shared memory and TCP."""

from __future__ import annotations

import contextlib
import importlib
import os
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rtp_llm.disagg.transports.interface import ReadError, Region


class NixlLibrary:
    """Host memory by NIXL's UCX backend; ``UCX_TLS`` says by what, as everywhere."""

    def __init__(self) -> None:
        # A peer that is cut off has a warning for each of its pieces otherwise.
        os.environ.setdefault("UCX_LOG_LEVEL", "error")
        self._api: Any = importlib.import_module("nixl._api")

    def share(self, regions: Sequence[Region], host: str) -> NixlShared:
        """See Library; NIXL finds out the host's addresses by itself."""
        return NixlShared(self._agent(regions))

    def connect(self, address: bytes, regions: Sequence[Region], host: str) -> NixlReader:
        """See Library. An agent for each peer: the end of an agent is what stops its transfers."""
        return NixlReader(self._agent(regions), address)

    def _agent(self, regions: Sequence[Region]) -> Any:
        try:
            config = self._api.nixl_agent_config(backends=["UCX"])
            agent = self._api.nixl_agent(f"rtp-llm-{uuid.uuid4().hex}", config)
            agent.register_memory([(base, size, 0, "") for base, size in regions], "DRAM")
        except Exception as error:
            raise ReadError(f"NIXL has no agent for us: {error!r}") from error
        return agent


class NixlShared:
    """Registered memory of one agent."""

    def __init__(self, agent: Any) -> None:
        self._agent: Any = agent
        self.address: bytes = agent.get_agent_metadata()

    def close(self) -> None:
        """See Shared."""
        self._agent = None


class NixlReader:
    """An agent that knows one other agent."""

    def __init__(self, agent: Any, address: bytes) -> None:
        self._agent: Any = agent
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
            theirs, ours = (agent.get_xfer_descs(_rows(pieces, side), "DRAM") for side in (0, 1))
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


def _rows(pieces: NDArray[np.int64], side: int) -> NDArray[np.int64]:
    """Address, bytes and device of each piece, as NIXL reads them."""
    rows = np.zeros((len(pieces), 3), np.int64)
    rows[:, 0], rows[:, 1] = pieces[:, side], pieces[:, 2]
    return rows
