# SPDX-License-Identifier: Apache-2.0
"""The transports of ``--kv-transport`` by name, made for either side."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from rtp_llm.config.roles import join_address, split_address
from rtp_llm.disagg.transports.client import TransportClient
from rtp_llm.disagg.transports.export_table import ExportTable
from rtp_llm.disagg.transports.generation_counters import GenerationCounters
from rtp_llm.disagg.transports.interface import Library, Region, Shared
from rtp_llm.disagg.transports.libraries import chosen, load_library
from rtp_llm.disagg.transports.pull_client import PullClient
from rtp_llm.disagg.transports.store import TransportStore
from rtp_llm.disagg.wire.messages import Offer
from rtp_llm.native import load_runtime

if TYPE_CHECKING:
    from rtp_llm.device import Device
    from rtp_llm.disagg.transports.endpoints import Client

Made = TypeVar("Made")
_logger = logging.getLogger("rtp_llm.engine")
# Requests whose blocks may be offered at a time.
_COUNTERS = 65_536


def offer_blocks(
    transport: str,
    host: str,
    fingerprint: str,
    regions: Sequence[Region],
    expiry: float,
    *,
    address: str | None = None,
    key: bytes = b"",
    device: Device | None = None,
) -> tuple[TransportStore, list[Offer]]:
    """A prefill worker's store and what its welcome says of it; ``regions``: where its blocks lie,
    ``device``: on which device that is, None: in the host's memory.

    ``address``: where blocks are sent from by TCP; None: a free port of ``host``. ``key``: what
    who fetches them by TCP must have; empty: none.

    Raises RuntimeError when something cannot be listened to or shared.
    """
    runtime = load_runtime()
    sent = runtime.CacheStore(expiry=expiry)
    export_tables, offers = {}, []
    with contextlib.ExitStack() as open_ones:
        for name in chosen(transport):
            if name == "tcp":
                here = address or join_address(host, 0)
                server = runtime.TransferServer(sent, here, fingerprint=fingerprint, key=key)
                open_ones.callback(server.close)
                offers.append(Offer(transport=name, address=_announced(server.address, host)))
                continue
            made = _usable(transport, name, device, lambda library: _share(library, regions, host))
            if made is None:
                continue
            export_tables[name], shared, ours = made
            open_ones.callback(shared.close)
            offers.append(Offer(transport=name, address=shared.address, regions=ours))
        close = open_ones.pop_all().close
    _logger.info("blocks are offered by %s", ", ".join(offer.transport for offer in offers))
    return TransportStore(sent, export_tables, close), offers


def _announced(address: str, host: str) -> bytes:
    """The port, after the host where a decode worker would not look for it by itself."""
    there, port = split_address("kv_transfer_address", address)
    known = there in (host, "0.0.0.0", "::")
    return (str(port) if known else join_address(there, port)).encode()


def _share(
    library: Library, regions: Sequence[Region], host: str
) -> tuple[ExportTable, Shared, list[Region]]:
    counters = GenerationCounters(_COUNTERS)
    ours = [*regions, counters.region]
    return ExportTable(counters), library.share(ours, host), ours


def take_blocks(
    transport: str,
    fingerprint: str,
    regions: Sequence[Region],
    *,
    key: bytes = b"",
    device: Device | None = None,
) -> TransportClient:
    """A decode worker's transports; ``regions``: where blocks are put; ``key`` and ``device``: as
    offer_blocks."""
    clients: dict[str, Client | PullClient] = {}
    for name in chosen(transport):
        if name == "tcp":
            clients[name] = load_runtime().TransferClient(fingerprint=fingerprint, key=key)
        elif client := _usable(
            transport, name, device, lambda library: PullClient(library, regions)
        ):
            clients[name] = client
    return TransportClient(clients)


def _usable(
    transport: str, name: str, device: Device | None, make: Callable[[Library], Made]
) -> Made | None:
    """What is made of a library; one that fails is left out (None) by "auto" only."""
    try:
        return make(load_library(name, device))
    except RuntimeError as error:
        if transport != "auto":
            raise
        _logger.warning("blocks do not go by %s: %s", name, error)
        return None
