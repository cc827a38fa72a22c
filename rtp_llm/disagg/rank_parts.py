# SPDX-License-Identifier: Apache-2.0
"""The parts with which each rank of a prefill or decode worker transfers blocks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from rtp_llm.config.roles import join_address, split_address
from rtp_llm.config.worker_key import read_worker_key
from rtp_llm.disagg.decode.head_sources import LayerSources
from rtp_llm.disagg.decode.rank_loads import RankLoads
from rtp_llm.disagg.prefill.prompt_sender import PromptSender
from rtp_llm.disagg.prefill.prompt_writer import PinningSendBuffer, PromptWriter
from rtp_llm.disagg.transports.cache_memory import memory_of
from rtp_llm.disagg.transports.registry import offer_blocks, take_blocks
from rtp_llm.disagg.wire.worker_key import WorkerKey
from rtp_llm.engine.messages import EngineStartError
from rtp_llm.loader import resolve
from rtp_llm.models.causal_lm import model_cache_dtypes
from rtp_llm.worker.cache.transfer.layout import BlockPart, CacheLayout
from rtp_llm.worker.cache.transfer.pinned_pool import PinnedPool
from rtp_llm.worker.cache.transfer.receive_buffers import (
    InPlaceReceiveBuffer,
    ReceiveBuffer,
    StagedReceiveBuffer,
)
from rtp_llm.worker.cache.transfer.send_buffers import InPlaceSendBuffer, StagedSendBuffer
from rtp_llm.worker.cache.transfer.writer_settings import WriterSettings

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings
    from rtp_llm.device import Device
    from rtp_llm.disagg.metrics import TransferMetrics
    from rtp_llm.disagg.transports.store import TransportStore
    from rtp_llm.disagg.wire.messages import Offer
    from rtp_llm.engine.kv_blocks import KvBlocks
    from rtp_llm.engine.ranks.tensor_ranks import TensorRanks
    from rtp_llm.worker.model_runner import ModelRunner


class RankParts:
    """Makes the parts of this rank of ``ranks``, which has the cache of ``runner``.

    ``fingerprint`` is set once rank 0 has sent it.
    """

    def __init__(self, settings: Settings, runner: ModelRunner, ranks: TensorRanks) -> None:
        self.settings, self.runner, self.ranks = settings, runner, ranks
        self.rank, self.size = ranks.parallel.rank, ranks.parallel.size
        self.device = runner.device
        self.layout = CacheLayout(runner.cache)
        config = runner.model.config
        dtypes = model_cache_dtypes(resolve(settings, config, self.device))
        self.sources = LayerSources(config, dtypes, self.rank, self.size)
        self.key = _worker_key(settings)
        self.fingerprint = ""

    @property
    def _reads_in_place(self) -> bool:
        return reads_in_place(self.settings, self.device)

    @property
    def _transport(self) -> str:
        """What --kv-transport means here; what it cannot be is refused before."""
        if self.size > 1 or not self._reads_in_place:
            return "tcp"
        return self.settings.kv_transport

    @property
    def _library_device(self) -> Device | None:
        return None if _is_host(self.device) else self.device

    @cached_property
    def pool(self) -> PinnedPool:
        """Host memory for blocks on their way, of which each rank has its part."""
        return pool_for(self.settings, self.layout, self.size)

    @property
    def sending_pool(self) -> PinnedPool | None:
        """None: blocks are fetched from where they are."""
        return None if self._reads_in_place else self.pool

    def offer(self, host: str) -> tuple[TransportStore, list[Offer]]:
        """The rank's store, and what the worker's welcome says of it.

        Raises EngineStartError: the address is taken, or a library fails.
        """
        settings, key = self.settings, self.key
        try:
            store, offers = offer_blocks(
                self._transport,
                host,
                self.fingerprint,
                memory_of(self.runner.cache),
                settings.prefill_timeout + settings.kv_load_timeout,
                address=_of_rank(settings.kv_transfer_address, self.rank),
                key=key.secret if key else b"",
                device=self._library_device,
            )
        except (OSError, RuntimeError) as error:
            raise EngineStartError(
                f"cannot offer blocks: {error} (--kv-transfer-address, --kv-transport)"
            ) from error
        return store, [msgspec.structs.replace(offer, rank=self.rank) for offer in offers]

    def sender(
        self,
        store: TransportStore,
        blocks: KvBlocks | None,
        metrics: TransferMetrics,
        max_batch_tokens: int,
    ) -> PromptSender:
        """Make the connector that offers blocks in ``store``. ``blocks``: see PromptWriter."""
        layout, device, runner = self.layout, self.device, self.runner
        send_buffer: PinningSendBuffer
        if self._reads_in_place:
            send_buffer = InPlaceSendBuffer(store, layout, metrics)
        else:
            send_buffer = staged = StagedSendBuffer(store, layout, metrics, runner.cache, device)
            staged.prepare(max_batch_tokens, self.pool.limit // 2)
        writing, several = WriterSettings.read(self.settings), self.size > 1
        writer = PromptWriter(layout, blocks, send_buffer, device, writing, keeps_blocks=several)
        return PromptSender(writer, store)

    def loads(self) -> RankLoads:
        """Make the connector that loads blocks. Raises EngineStartError: a library fails."""
        cache, key = self.runner.cache, self.key
        try:
            client = take_blocks(
                self._transport,
                self.fingerprint,
                memory_of(cache),
                key=key.secret if key else b"",
                device=self._library_device,
            )
        except RuntimeError as error:
            raise EngineStartError(f"cannot take blocks: {error} (--kv-transport)") from error
        layout, device = self.layout, self.device

        def new_buffer(parts: Sequence[BlockPart]) -> ReceiveBuffer:
            if self._reads_in_place:
                return InPlaceReceiveBuffer(layout, parts, device)
            return StagedReceiveBuffer(layout, parts, cache, device, self.pool)

        return RankLoads(client, self.sources, layout.block_size, new_buffer)


def pool_for(settings: Settings, layout: CacheLayout, ranks: int) -> PinnedPool:
    """As --cache-store-mem-mb says."""
    mebibytes = settings.cache_store_mem_mb
    return PinnedPool(layout, None if mebibytes is None else mebibytes << 20, ranks)


def reads_in_place(settings: Settings, device: Device) -> bool:
    """Blocks go from the cache itself, and into it: the host's, or a device's that a library reads.

    On a device "auto" means TCP.
    """
    return _is_host(device) or settings.kv_transport == "nixl"


def _is_host(device: Device) -> bool:
    return device.torch_device.type == "cpu"


def _of_rank(address: str | None, rank: int) -> str | None:
    """Ranks have consecutive ports, where the first one is chosen."""
    if address is None or not rank:
        return address
    host, port = split_address("kv_transfer_address", address)
    return join_address(host, port + rank if port else 0)


def _worker_key(settings: Settings) -> WorkerKey | None:
    path = settings.worker_key_file
    return None if path is None else WorkerKey(read_worker_key(path))
