# SPDX-License-Identifier: Apache-2.0
"""The decode side's transports as one client: for each prefill worker the best that both have."""

from __future__ import annotations

import select
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rtp_llm.config.roles import join_address, split_address
from rtp_llm.disagg.transports.pull_client import PullClient
from rtp_llm.disagg.wire.bounded_queue import Sender
from rtp_llm.disagg.wire.messages import Offer, Stored

if TYPE_CHECKING:
    from rtp_llm.device import Event
    from rtp_llm.disagg.transports.endpoints import Client, LoadHandle


# Of each tensor-parallel rank of a prefill worker.
Addresses = tuple[str, ...]


class TransportClient:
    """``Client`` whose addresses are "transport://where", as ``meet`` gives them."""

    def __init__(self, clients: Mapping[str, Client | PullClient]) -> None:
        """``clients`` by transport, the best first."""
        self._clients = clients
        # Of workers that offer it, if we take it: the addresses of their ranks.
        self._by_tcp: dict[str, tuple[str, ...]] = {}
        self._readable = select.epoll()
        for client in clients.values():
            self._readable.register(client.fileno(), select.EPOLLIN)

    def meet(self, address: str, host: str, offers: Sequence[Offer]) -> tuple[str, Addresses]:
        """(transport, addresses of its ranks' blocks) for a prefill worker that sent this welcome.

        Raises ValueError: it offers none of ours, or nonsense.
        """
        offered = _by_transport(offers)
        name = next((name for name in self._clients if name in offered), None)
        if name is None:
            raise ValueError(
                f"it offers blocks by {_listed(offered)}, and this worker takes them by "
                f"{_listed(self._clients)} (--kv-transport on both sides)"
            )
        self._by_tcp.pop(address, None)
        if "tcp" in offered and "tcp" in self._clients:
            places = (_place(host, offer.address) for offer in offered["tcp"])
            self._by_tcp[address] = tuple(f"tcp://{place}" for place in places)
        client = self._clients[name]
        if not isinstance(client, PullClient):
            return name, self._by_tcp[address]
        where, (offer,) = f"{name}://{address}", offered[name]
        client.meet(where, host, offer)
        return name, (where,)

    def forget(self, address: str) -> None:
        """The prefill worker is listed no longer; nothing is loaded from it any more.

        TCP's connections end when the worker does.
        """
        self._by_tcp.pop(address, None)
        for name, client in self._clients.items():
            if isinstance(client, PullClient):
                client.forget(f"{name}://{address}")

    def instead(self, address: str, where: str) -> tuple[str, tuple[str, Addresses]] | None:
        """(why, (transport, addresses of its blocks)) where a library has failed with a worker
        since it was met and both sides have TCP, too: who asked for a library by its name has
        not."""
        client = self._clients[where.partition("://")[0]]
        if address not in self._by_tcp or not isinstance(client, PullClient):
            return None
        trouble = client.trouble(where)
        return (trouble, ("tcp", self._by_tcp[address])) if trouble else None

    def load(
        self,
        address: str,
        request: str,
        layers: Sequence[tuple[int, NDArray[np.int64]]],
        *,
        timeout: float,
        free: Event | None = None,
        partition: tuple[int, int] = (1, 0),
    ) -> LoadHandle:
        """See Client. ``partition``: by TCP alone. ``free``: not before it is reached a reader
        writes to the addresses; by TCP blocks come to memory of the host, which the device does
        not use."""
        name, _, where = address.partition("://")
        client = self._clients[name]
        if isinstance(client, PullClient):
            return client.load(address, request, layers, timeout=timeout, free=free)
        return client.load(where, request, layers, timeout=timeout, partition=partition)

    def hear(self, address: str, stored: Stored, sender: Sender) -> None:
        """A prefill worker has blocks to be read, by whatever they were asked for.

        ``sender``, where that came from, is paused while it says more than is looked at.
        """
        for name, client in self._clients.items():
            if isinstance(client, PullClient):
                client.hear(f"{name}://{address}", stored, sender)

    def fileno(self) -> int:
        """See Client."""
        return self._readable.fileno()

    def clear(self) -> None:
        """See Client."""
        for client in self._clients.values():
            client.clear()

    def close(self) -> None:
        """See Client."""
        for client in self._clients.values():
            client.close()


def _by_transport(offers: Sequence[Offer]) -> dict[str, list[Offer]]:
    """Those of each transport by rank. Raises ValueError where ranks are missing or twice there."""
    offered: dict[str, list[Offer]] = {}
    for offer in sorted(offers, key=lambda offer: offer.rank):
        offered.setdefault(offer.transport, []).append(offer)
    for ranks in offered.values():
        if [offer.rank for offer in ranks] != list(range(len(ranks))):
            raise ValueError("it offers blocks of some of its ranks only")
    return offered


def _place(host: str, announced: bytes) -> str:
    """A port of the worker's host, or a host and its port. Raises ValueError for nonsense."""
    text = announced.decode()
    if ":" not in text:
        return join_address(host, int(text))
    return join_address(*split_address("transfer address", text))


def _listed(names: Mapping[str, object]) -> str:
    # A peer may say anything, and it is logged.
    return ", ".join(name for name in names if name.isidentifier())[:80] or "nothing"
