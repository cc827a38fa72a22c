# SPDX-License-Identifier: Apache-2.0
"""What NIXL is told of memory, by an agent that writes it down."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest

from rtp_llm.device.cpu import CpuDevice
from rtp_llm.disagg.transports.interface import HOST, ReadError
from rtp_llm.disagg.transports.nixl import NixlLibrary
from rtp_llm.testing.disagg.sides import wait_for

THEIRS = [(1 << 20, 4096, 3), (1 << 30, 64, HOST)]
OURS = [(1 << 21, 4096, 0), (1 << 31, 64, HOST)]


class Agent:
    """Of ``nixl._api``."""

    made: list[Agent] = []

    def __init__(self, name: str, config: Any) -> None:
        self.config = config
        self.registered: dict[str, Any] = {}
        self.transfers: list[Any] = []
        self.tended = 0
        Agent.made.append(self)

    def register_memory(self, rows: Any, kind: str) -> None:
        self.registered[kind] = rows

    def get_agent_metadata(self) -> bytes:
        return b"here"

    def add_remote_agent(self, address: bytes) -> str:
        return address.decode()

    def get_new_notifs(self) -> None:
        self.tended += 1

    def get_xfer_descs(self, rows: Any, kind: str) -> Any:
        return kind, rows.tolist()

    def initialize_xfer(self, way: str, ours: Any, theirs: Any, peer: str) -> Any:
        self.transfers.append((way, ours, theirs, peer))
        return len(self.transfers)

    def transfer(self, handle: Any) -> None:
        pass


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("nixl_cu13._api")
    module.nixl_agent = Agent  # type: ignore[attr-defined]
    module.nixl_agent_config = lambda **given: given  # type: ignore[attr-defined]
    monkeypatch.setattr("rtp_llm.disagg.transports.nixl.find_module", lambda name: "nixl_cu13")
    monkeypatch.setitem(sys.modules, "nixl_cu13", types.ModuleType("nixl_cu13"))
    monkeypatch.setitem(sys.modules, "nixl_cu13._api", module)
    monkeypatch.setattr(Agent, "made", [])


def test_blocks_of_a_device_and_counters_of_the_host(api: None) -> None:
    reader = NixlLibrary(CpuDevice()).connect(b"there", THEIRS, OURS, "")
    (agent,) = Agent.made
    assert agent.registered == {
        "DRAM": [(1 << 31, 64, 0, "")],
        "VRAM": [(1 << 21, 4096, 0, "")],
    }
    blocks = np.array([[(1 << 20) + 8, 1 << 21, 16], [(1 << 20) + 64, (1 << 21) + 64, 32]])
    reader.read(blocks)
    reader.read(np.array([[1 << 30, 1 << 31, 8]]))
    theirs = [[(1 << 20) + 8, 16, 3], [(1 << 20) + 64, 32, 3]]
    ours = [[1 << 21, 16, 0], [(1 << 21) + 64, 32, 0]]
    counter = ("DRAM", [[1 << 31, 8, 0]]), ("DRAM", [[1 << 30, 8, 0]])
    assert agent.transfers == [
        ("READ", ("VRAM", ours), ("VRAM", theirs), "there"),
        ("READ", *counter, "there"),
    ]
    with pytest.raises(ReadError, match="several devices"):
        reader.read(np.array([[1 << 20, 1 << 21, 8], [1 << 30, 1 << 21, 8]]))


@pytest.mark.parametrize("device", [None, CpuDevice()], ids=["host", "device"])
def test_who_tends_an_agent(api: None, device: CpuDevice | None) -> None:
    """NIXL itself for the host; for a device, where its own thread has no context, one of ours."""
    shared = NixlLibrary(device).share(OURS, "")
    (agent,) = Agent.made
    assert agent.config == {"enable_prog_thread": device is None, "backends": ["UCX"]}
    if device is not None:
        wait_for(lambda: agent.tended > 2)
    shared.close()
    tended = agent.tended
    assert (tended > 0) is (device is not None)
