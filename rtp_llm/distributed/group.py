# SPDX-License-Identifier: Apache-2.0
"""Collectives among ranks over torch.distributed, with errors that say what happened."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from typing import Any

import msgspec
import torch
from torch import Tensor

_HOST_BACKEND = "gloo"


class RankLostError(RuntimeError):
    """Another rank has ended, hangs or disagrees; the ranks cannot continue together."""


class Group:
    """Ranks 0 to `size` - 1 that call the same collectives in the same order.

    All tensors are contiguous and on the group's device. Each call raises RankLostError if a rank
    does not answer within the group's timeout, or is gone.
    """

    def __init__(self, handle: Any, rank: int, size: int) -> None:
        """`handle`: a process group of torch.distributed."""
        import torch.distributed as distributed

        self.rank = rank
        self.size = size
        self._handle = handle
        self._api: Any = distributed
        # The name since torch 2.13, where the old one warns.
        old: Any = distributed.all_gather_into_tensor
        self._gather = getattr(distributed, "all_gather_single", old)

    @property
    def name(self) -> str:
        """The name of its process group."""
        return str(self._handle.group_name)

    def __str__(self) -> str:
        """This rank, as errors name it."""
        return f"rank {self.rank} of {self.size}"

    def warm_up(self, place: torch.device) -> None:
        """Send a first message of each kind, from ``place``, to make connections; messages in
        graphs could not do that."""
        number = torch.zeros(1, device=place)
        self.all_gather(number)
        self.sum(number)
        self.all_to_all(number.expand(self.size, 1).contiguous())

    @contextmanager
    def _talking(self, what: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        except RuntimeError as error:
            seconds = time.monotonic() - began
            first = str(error).strip().split("\n")[0]
            raise RankLostError(
                f"{self} lost contact to another rank in {what} after {seconds:.1f} s: that rank "
                f"has ended or hangs ({first})"
            ) from error

    def sum(self, tensor: Tensor) -> None:
        """Replace `tensor` by its sum over the ranks."""
        with self._talking("a sum"):
            self._api.all_reduce(tensor, op=self._api.ReduceOp.SUM, group=self._handle)

    def all_reduce(self, tensor: Tensor) -> None:
        """Replace `tensor` (floats) by its sum over the ranks, the same bits on all of them.

        In host memory it is summed in float32, in the order of the ranks. The backends of devices
        compute each number of the sum in one place and send it to all.
        """
        if not self._in_host_memory:
            self.sum(tensor)
            return
        parts = self.all_gather(tensor.view(1, -1)).float()
        total = parts[0]
        for part in parts[1:]:
            total += part
        tensor.copy_(total.view_as(tensor))

    @cached_property
    def _in_host_memory(self) -> bool:
        return bool(self._api.get_backend(self._handle) == _HOST_BACKEND)

    def maximum(self, tensor: Tensor) -> None:
        """Replace each number of `tensor` by its largest value on any rank."""
        with self._talking("a maximum"):
            self._api.all_reduce(tensor, op=self._api.ReduceOp.MAX, group=self._handle)

    def broadcast(self, tensor: Tensor, source: int = 0) -> None:
        """Replace `tensor` by rank `source`'s tensor."""
        with self._talking("a broadcast"):
            self._api.broadcast(tensor, group_src=source, group=self._handle)

    def all_gather(self, tensor: Tensor) -> Tensor:
        """`tensor` [N, ...] of each rank in turn: [size * N, ...]."""
        gathered = tensor.new_empty(self.size * tensor.shape[0], *tensor.shape[1:])
        with self._talking("an all-gather"):
            self._gather(gathered, tensor, group=self._handle)
        return gathered

    def gather(self, value: Any, kind: Any = Any) -> list[Any]:
        """The values of all ranks, by rank, each read as `kind`; host groups only.

        Numbers, strings, bytes, and lists, dictionaries and dataclasses of these: nothing from
        another machine is ever unpickled.
        """
        sent = msgspec.msgpack.encode(value)
        lengths = self.all_gather(torch.tensor([len(sent)])).tolist()
        padded = torch.zeros(1, max(lengths), dtype=torch.uint8)
        padded[0, : len(sent)] = torch.frombuffer(bytearray(sent), dtype=torch.uint8)
        rows = self.all_gather(padded).numpy()
        decoder = msgspec.msgpack.Decoder(kind)
        return [decoder.decode(row[:n].tobytes()) for row, n in zip(rows, lengths, strict=True)]

    def all_to_all(
        self,
        tensor: Tensor,
        sent: Sequence[int] | None = None,
        received: Sequence[int] | None = None,
    ) -> Tensor:
        """Rows of `tensor` [N, ...] for each rank in turn -> the rows from each rank in turn.

        `sent` and `received` are rows for and from each rank; None: the same number for all.
        """
        rows = tensor.shape[0] if received is None else sum(received)
        target = tensor.new_empty(rows, *tensor.shape[1:])
        with self._talking("an all-to-all"):
            self._api.all_to_all_single(
                target,
                tensor,
                None if received is None else list(received),
                None if sent is None else list(sent),
                group=self._handle,
            )
        return target

    def exchange(
        self, sends: Sequence[tuple[int, Tensor]], receives: Sequence[tuple[int, Tensor]]
    ) -> None:
        """Send tensors to ranks and fill others from ranks, (rank, tensor) each.

        Between two ranks they arrive in the order in which they are listed on both sides.
        """
        api = self._api
        with self._talking("an exchange"):
            waits = [api.isend(t, group_dst=rank, group=self._handle) for rank, t in sends]
            waits += [api.irecv(t, group_src=rank, group=self._handle) for rank, t in receives]
            for each in waits:
                each.wait()

    def wait_for_all(self, seconds: float | None = None) -> None:
        """Return once every rank has called this; raises RankLostError after `seconds`. Host groups
        only."""
        with self._talking("a meeting"):
            met = self._api.all_reduce(torch.zeros(1), group=self._handle, async_op=True)
            met.wait(*(() if seconds is None else (timedelta(seconds=seconds),)))
