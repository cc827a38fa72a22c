# SPDX-License-Identifier: Apache-2.0
"""A decode worker's end of transfers, on one rank: where blocks come from and where they go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rtp_llm.worker.cache.transfer.layout import BlockPart
from rtp_llm.worker.cache.transfer.receive_buffers import ReceiveBuffer

if TYPE_CHECKING:
    from rtp_llm.disagg.decode.head_sources import LayerSources
    from rtp_llm.disagg.rank_messages import LoadOrder
    from rtp_llm.disagg.transports.client import TransportClient
    from rtp_llm.disagg.transports.endpoints import LoadHandle


class PromptLoad(Protocol):
    """A prompt's blocks on their way into the cache, on all ranks."""

    @property
    def code(self) -> str:
        """ "none" when everything has arrived, else what went wrong."""

    @property
    def message(self) -> str:
        """The failure in words."""

    def advance(self) -> bool:
        """Handle what has arrived; returns whether the load has ended, with no transfer writing."""

    def cancel(self) -> None:
        """Cancel the load; returns at once, it ends later."""

    def finish(self) -> None:
        """All has arrived: work that is asked of devices from now on sees it in the cache."""

    def abandon(self) -> None:
        """It has failed: nothing writes to the cache that is not ordered before later work."""


class Receiving(Protocol):
    """Loads prompts' blocks."""

    def check(self, ranks: int) -> None:
        """Raise ValueError if blocks of that many ranks do not fit this worker's."""

    def begin(self, order: LoadOrder) -> PromptLoad:
        """Begin a load. Raises RuntimeError, ValueError: there is no memory for it, or refused."""

    def deliver(self) -> None:
        """Let all ranks receive what was requested so far."""

    def fileno(self) -> int:
        """A descriptor that becomes readable when a load has progressed."""

    def clear(self) -> None:
        """Make it unreadable again."""

    def close(self) -> None:
        """End connections and threads."""


class RankLoad:
    """What one rank loads of a prompt: one load from each rank of the prefill worker that has some
    of its heads."""

    def __init__(
        self, buffer: ReceiveBuffer, loads: Sequence[LoadHandle], parts: Counter[int]
    ) -> None:
        """``parts``: how many of the loads bring something of each layer."""
        self.buffer, self.loads = buffer, loads
        self._missing = parts
        self._cancelled = False

    @property
    def code(self) -> str:
        return self._failure[0]

    @property
    def message(self) -> str:
        return self._failure[1]

    @property
    def _failure(self) -> tuple[str, str]:
        """Of several that of the first: the others were cancelled for it."""
        failed = [(load.code, load.message) for load in self.loads if load.code != "none"]
        of_itself = (each for each in failed if each[0] != "cancelled")
        return next(of_itself, failed[0] if failed else ("none", ""))

    def advance(self) -> bool:
        # Asked first: what arrives between the two questions is seen by the next call.
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
        self._cancelled = True
        for load in self.loads:
            load.cancel()

    def finish(self) -> None:
        self.buffer.finish()

    def abandon(self) -> None:
        self.buffer.abandon()


class RankReceiver:
    """Receiving of one rank."""

    def __init__(
        self,
        client: TransportClient,
        sources: LayerSources,
        block_size: int,
        new_buffer: Callable[[Sequence[BlockPart]], ReceiveBuffer],
    ) -> None:
        self.client, self.new_buffer = client, new_buffer
        self._sources, self._block_size = sources, block_size

    def check(self, ranks: int) -> None:
        self._sources.of(ranks)

    def begin(self, order: LoadOrder) -> RankLoad:
        buffer = self.new_buffer(order.parts)
        asked = self._sources.loads(buffer.rows, self._block_size, len(order.addresses))
        loads: list[LoadHandle] = []
        for (rank, *slices), rows in asked.items():
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
        parts = Counter(layer for rows in asked.values() for layer, _ in rows)
        return RankLoad(buffer, loads, parts)

    def deliver(self) -> None:
        """Nothing to do: there are no other ranks."""

    def fileno(self) -> int:
        return self.client.fileno()

    def clear(self) -> None:
        self.client.clear()

    def close(self) -> None:
        self.client.close()


@dataclass(frozen=True)
class _Refused:
    """A load that was not begun, of a prompt of which another one was."""

    message: str
    code: str = "load_failed"
    done: bool = True

    def poll(self) -> list[int]:
        return []

    def cancel(self) -> None:
        return
