# SPDX-License-Identifier: Apache-2.0
"""Which rank of which group this process is, as a launcher passes it to its children."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rtp_llm.distributed.multicast import NO_MULTICAST

TCP = "tcp://"
RENDEZVOUS_VARIABLE = "RTP_LLM_RENDEZVOUS"
_DEVICES_VARIABLE = "RTP_LLM_RANK_DEVICES"
# All ranks are on this machine, and its host name may resolve to anything.
LOOPBACK: Mapping[str, str] = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


@dataclass(frozen=True)
class Membership:
    """Rank `rank` of `size` processes, which meet at `rendezvous`: a file on this machine, or
    "tcp://HOST:PORT" (see meeting_place) on one of several machines.

    Each process has `devices`, and starts its own ranks on these itself.
    """

    rank: int
    size: int
    rendezvous: str
    devices: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(f"RANK={self.rank} is not below WORLD_SIZE={self.size}")

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Membership | None:
        """Read `environment`; returns None for a process that our launcher did not start.

        Raises ValueError for variables that contradict each other.
        """
        place = environ.get(RENDEZVOUS_VARIABLE)
        if not place:
            return None
        devices = int(environ.get(_DEVICES_VARIABLE, "1"))
        try:
            rank, size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
            return cls(rank // devices, size // devices, place, devices)
        except KeyError as error:
            raise ValueError(f"{RENDEZVOUS_VARIABLE} is set and {error.args[0]} is not") from error

    @property
    def meeting_place(self) -> tuple[str, int] | None:
        """Host and port of the rendezvous; None for a file."""
        if not self.rendezvous.startswith(TCP):
            return None
        host, _, port = self.rendezvous.removeprefix(TCP).rpartition(":")
        return host, int(port)

    def remove_rendezvous(self) -> None:
        """Delete the folder in which the processes met, if the launcher is gone."""
        shutil.rmtree(Path(self.rendezvous).parent, ignore_errors=True)

    def environment(self) -> dict[str, str]:
        """The variables for the process of this rank; LOCAL_RANK chooses its devices."""
        rank, size = str(self.rank * self.devices), str(self.size * self.devices)
        return {
            "RANK": rank,
            "WORLD_SIZE": size,
            "LOCAL_RANK": rank,
            "LOCAL_WORLD_SIZE": size,
            RENDEZVOUS_VARIABLE: self.rendezvous,
            _DEVICES_VARIABLE: str(self.devices),
            **LOOPBACK,
            **NO_MULTICAST,
        }
