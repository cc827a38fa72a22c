# SPDX-License-Identifier: Apache-2.0
"""The libraries by name, and when they are worth being used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rtp_llm.config.roles import is_installed
from rtp_llm.device import Device
from rtp_llm.disagg.transports.interface import Library

_INFINIBAND = Path("/sys/class/infiniband")


def _nixl(device: Device | None) -> Library:
    from rtp_llm.disagg.transports.nixl import NixlLibrary

    return NixlLibrary(device)


def _mooncake(device: Device | None) -> Library:
    from rtp_llm.disagg.transports.mooncake import MooncakeLibrary

    return MooncakeLibrary("rdma" if has_rdma() else "tcp")


# Name -> what imports and makes it; the best first.
LIBRARIES: dict[str, Callable[[Device | None], Library]] = {"nixl": _nixl, "mooncake": _mooncake}


def load_library(name: str, device: Device | None = None) -> Library:
    """Import it; ``device``: whose memory is read, None: the host's. Raises RuntimeError when that
    fails."""
    try:
        return LIBRARIES[name](device)
    except ImportError as error:
        raise RuntimeError(f"{name} is installed and cannot be imported: {error}") from error


def has_rdma(devices: Path | None = None) -> bool:
    """Whether a port of an RDMA device is up; the system says so, no library is asked."""
    try:
        states = (devices or _INFINIBAND).glob("*/ports/*/state")
        return any("ACTIVE" in state.read_text() for state in states)
    except OSError:  # a device that is just being removed
        return False


def chosen(transport: str) -> list[str]:
    """The transports that ``--kv-transport`` stands for, the best first.

    "auto" takes a library only where there is RDMA: over TCP ours is faster (docs/transports.md).
    """
    if transport != "auto":
        return [transport]
    if not has_rdma():
        return ["tcp"]
    return [*filter(is_installed, LIBRARIES), "tcp"]
