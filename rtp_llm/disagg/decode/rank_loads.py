# SPDX-License-Identifier: Apache-2.0
"""The worker side of a decode worker: loads one rank's part of prompts' blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rtp_llm.disagg.rank_messages import CancelLoad, CloseLoad, LoadEnded, LoadOrder
from rtp_llm.worker.cache.transfer.layout import BlockPart
from rtp_llm.worker.cache.transfer.receive_buffers import ReceiveBuffer
from rtp_llm.worker.kv_connector import WorkerConnector

if TYPE_CHECKING:
    from rtp_llm.disagg.decode.head_sources import LayerSources
    from rtp_llm.disagg.transports.client import TransportClient
    from rtp_llm.disagg.transports.endpoints import LoadHandle

# How often a rank in a process of its own looks after its loads.
_POLL_SECONDS = 0.002


class RankLoad:
    """One rank's part of a prompt: a load from each rank of the prefill worker that has some of its
    heads."""

    def __init__(
        self, buffer: ReceiveBuffer, loads: Sequence[LoadHandle], parts: Counter[int]
    ) -> None:
        """``parts``: how many of the loads bring something of each layer."""
        self.buffer, self.loads = buffer, loads
        self._missing = parts
        self._cancelled = False

    @property
    def code(self) -> str:
        """ "none" when everything has arrived, else what went wrong."""
        return self._failure[0]

    @property
    def message(self) -> str:
        """The failure in words."""
        return self._failure[1]

    @property
    def _failure(self) -> tuple[str, str]:
        """The first failure; the other loads were cancelled because of it."""
        failed = [(load.code, load.message) for load in self.loads if load.code != "none"]
        of_itself = (each for each in failed if each[0] != "cancelled")
        return next(of_itself, failed[0] if failed else ("none", ""))

    def advance(self) -> bool:
        """Handle what has arrived; returns whether the load has ended, with no transfer writing."""
        # Queried first: what arrives between the two queries is seen by the next call.
        done = all(load.done for load in self.loads)
        if not self._cancelled:
            self._take()
            if not done and self.code != "none":
                self.cancel()
        return done

    def _take(self) -> None:
        complete = []
        for load in self.loads:
            for layer in load.poll():
                self._missing[layer] -= 1
                if not self._missing[layer]:
                    complete.append(layer)
        if complete:
            self.buffer.arrived(complete)

    def cancel(self) -> None:
        """Cancel the load; returns at once, it ends later."""
        self._cancelled = True
        for load in self.loads:
            load.cancel()

    def finish(self) -> None:
        """Everything has arrived: device work enqueued from now on sees it in the cache."""
        self.buffer.finish()

    def abandon(self) -> None:
        """The load has failed: nothing writes to the cache that is not ordered before later
        work."""
        self.buffer.abandon()


class RankLoads(WorkerConnector):
    """Starts the loads that the scheduler side orders, and reports when they end."""

    def __init__(
        self,
        client: TransportClient,
        sources: LayerSources,
        block_size: int,
        new_buffer: Callable[[Sequence[BlockPart]], ReceiveBuffer],
    ) -> None:
        self.client, self.new_buffer = client, new_buffer
        self._sources, self._block_size = sources, block_size
        self.loads: dict[int, RankLoad] = {}  # by name, until they are closed
        self._in_progress: set[int] = set()
        self._refused: list[LoadEnded] = []

    def check(self, ranks: int) -> None:
        """Raise ValueError if blocks of that many ranks do not fit this worker's."""
        self._sources.of(ranks)

    @property
    def poll_seconds(self) -> float | None:
        return _POLL_SECONDS if self._in_progress or self._refused else None

    def handle_message(self, message: Any) -> None:
        match message:
            case LoadOrder():
                self._start(message)
            case CancelLoad():
                if message.name in self._in_progress:
                    self.loads[message.name].cancel()
            case CloseLoad():
                load = self.loads.pop(message.name, None)
                if load is not None and message.arrived:
                    load.finish()
                elif load is not None:
                    load.abandon()

    def get_finished(self) -> Iterator[LoadEnded]:
        refused, self._refused = self._refused, []
        yield from refused
        for name in list(self._in_progress):
            load = self.loads[name]
            if load.advance():
                self._in_progress.remove(name)
                yield LoadEnded(name, load.code, load.message)

    def _start(self, order: LoadOrder) -> None:
        try:
            self.loads[order.name] = self._load(order)
        except (RuntimeError, ValueError) as error:  # no memory for its buffer, or refused
            reason = f"{type(error).__name__}: {error}"
            self._refused.append(LoadEnded(order.name, "load_failed", reason))
        else:
            self._in_progress.add(order.name)

    def _load(self, order: LoadOrder) -> RankLoad:
        buffer = self.new_buffer(order.parts)
        requested = self._sources.loads(buffer.rows, self._block_size, len(order.addresses))
        loads: list[LoadHandle] = []
        for (rank, *slices), rows in requested.items():
            try:
                load = self.client.load(
                    order.addresses[rank],
                    str(order.name),
                    rows,
                    timeout=order.timeout,
                    free=buffer.free,
                    partition=(slices[0], slices[1]),
                )
            except (RuntimeError, ValueError) as error:
                if not loads:
                    raise
                load = _Refused(f"{type(error).__name__}: {error}")
            loads.append(load)
        parts = Counter(layer for rows in requested.values() for layer, _ in rows)
        return RankLoad(buffer, loads, parts)


@dataclass(frozen=True)
class _Refused:
    """A load that was not started, of a prompt of which another one was."""

    message: str
    code: str = "load_failed"
    done: bool = True

    def poll(self) -> list[int]:
        return []

    def cancel(self) -> None:
        return
