# SPDX-License-Identifier: Apache-2.0
"""All ranks of one model, and the process groups among them."""

from __future__ import annotations

import datetime
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from rtp_llm.distributed.group import Group, RankLostError
from rtp_llm.distributed.membership import TCP
from rtp_llm.distributed.multicast import check_no_multicast

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from rtp_llm.device import Device
    from rtp_llm.distributed.membership import Membership

HOST_BACKEND = "gloo"
HOST = torch.device("cpu")
_LOOK_SECONDS = 0.01
Kind = TypeVar("Kind", bound=Group)


class World:
    """`tensors` moves tensors of the device, `host` numbers in host memory.

    `moves` is for a background thread: its messages never queue up after the messages of a step.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        tensors: Group,
        host: Group,
        moves: Group,
        *,
        place: torch.device = HOST,
        backend: str = HOST_BACKEND,
        timeout: float = 0.0,
    ) -> None:
        """Subgroups use `place` and `backend` for tensors, and `timeout` in s for collectives."""
        self.rank = rank
        self.size = size
        self.tensors = tensors
        self.host = host
        self.moves = moves
        self.place, self._backend, self._timeout = place, backend, timeout

    @classmethod
    def connect(
        cls,
        membership: Membership,
        device: Device,
        timeout: float,
        join_timeout: float = 0.0,
        look: Callable[[], None] = lambda: None,
    ) -> World:
        """Meet the other ranks.

        `timeout` in seconds is for every collective, `join_timeout` for ranks to join, if longer.
        `look` is called during the wait, and may raise. The backend for tensors is the device's.
        Raises RankLostError if not all join in time, ValueError if NVLink multicast is not off.
        """
        check_no_multicast(os.environ)
        import torch.distributed as distributed

        rank, size = membership.rank, membership.size
        limit = datetime.timedelta(seconds=timeout)
        for name, value in device.collectives_environment.items():
            os.environ.setdefault(name, value)
        join_timeout = max(timeout, join_timeout)
        try:
            store = _open_store(membership)
            _meet(store, rank, size, join_timeout, look)
            place: dict[str, Any] = {"rank": rank, "world_size": size}
            distributed.init_process_group(HOST_BACKEND, store=store, timeout=limit, **place)
            tensors = distributed.new_group(backend=device.collectives, timeout=limit)
            moves = distributed.new_group(backend=HOST_BACKEND, timeout=limit)
        except RuntimeError as error:
            raise RankLostError(
                f"rank {rank} of {size}: not all ranks came together within {join_timeout:.15g} s "
                f"({str(error).strip().splitlines()[0]})"
            ) from error
        groups = [Group(each, rank, size) for each in (tensors, distributed.group.WORLD, moves)]
        where, backend = device.torch_device, device.collectives
        world = cls(rank, size, *groups, place=where, backend=backend, timeout=timeout)
        world.tensors.warm_up(where)
        device.synchronize()
        return world

    def subgroup(self, ranks: Sequence[int], kind: type[Kind]) -> Kind | None:
        """A group for tensors of `ranks`, in ascending order; only on those ranks.

        Every rank of the world calls this, equally often and with the same ranks.
        """
        import torch.distributed as distributed

        limit = datetime.timedelta(seconds=self._timeout)
        handle = distributed.new_group(sorted(ranks), backend=self._backend, timeout=limit)
        if self.rank not in ranks:
            return None
        return kind(handle, sorted(ranks).index(self.rank), len(ranks))

    def part(self, parts: Sequence[Sequence[int]], device: Device) -> World:
        """The world of those `parts` of this one's ranks, in ascending order, that has this rank.

        Every rank calls this, equally often and with the same parts. Waiting for all, and leaving,
        stay what they are for the whole.
        """
        import torch.distributed as distributed

        backend, timeout = self._backend, self._timeout
        limit = datetime.timedelta(seconds=timeout)
        found = self
        for ranks in map(list, parts):
            backends = backend, HOST_BACKEND, HOST_BACKEND
            handles = [
                distributed.new_group(ranks, backend=each, timeout=limit) for each in backends
            ]
            if self.rank in ranks:
                rank, size = ranks.index(self.rank), len(ranks)
                groups = [Group(each, rank, size) for each in handles]
                place = self.place
                found = World(rank, size, *groups, place=place, backend=backend, timeout=timeout)
        found.tensors.warm_up(self.place)
        device.synchronize()
        return found

    def wait_for_all(self, timeout: float) -> None:
        """Return once every rank is here. After `timeout` s a RankLostError names the missing."""
        import torch.distributed as distributed

        limit = datetime.timedelta(seconds=timeout)
        try:
            distributed.monitored_barrier(timeout=limit, wait_all_ranks=True)
        except RuntimeError as error:
            raise RankLostError(
                f"rank {self.rank} of {self.size} waited {timeout:.15g} s for the others "
                f"({str(error).strip().splitlines()[0]})"
            ) from error

    def close(self) -> None:
        """Leave the groups; captured graphs that use them must be gone already."""
        import torch.distributed as distributed

        distributed.destroy_process_group()

    def abandon(self) -> None:
        """Leave the groups after the other ranks have ended; `close` would wait for them."""
        from torch.distributed import distributed_c10d

        distributed_c10d._abort_process_group()


def _open_store(membership: Membership) -> Store:
    """The store in which ranks leave what the others must know about them."""
    from torch._C._distributed_c10d import FileStore, TCPStore

    if (place := membership.meeting_place) is None:
        return FileStore(membership.rendezvous, membership.size)
    return TCPStore(*place, wait_for_workers=False)


def host_store(address: str) -> tuple[Store, str]:
    """A store at a free port of this machine's ``address``, which lives as long as the result, and
    the rendezvous that it is for a Membership."""
    from torch._C._distributed_c10d import TCPStore

    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, 0), family=family)
    port = listener.getsockname()[1]
    store = TCPStore(
        address,
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    return store, f"{TCP}{address}:{port}"


def _meet(
    store: Store, rank: int, size: int, join_timeout: float, look: Callable[[], None]
) -> None:
    """Return once all ranks are here; raises RuntimeError if they are not after the timeout."""
    store.set(f"here/{rank}", "")
    everyone = [f"here/{each}" for each in range(size)]
    deadline = time.monotonic() + join_timeout
    while not store.check(everyone):
        look()
        if time.monotonic() > deadline:
            store.wait(everyone, datetime.timedelta(milliseconds=1))  # raises, and names them
        time.sleep(_LOOK_SECONDS)
