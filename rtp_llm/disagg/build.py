"""Puts an engine and its transfers together, by role."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from rtp_llm.config.roles import is_loopback, prefill_addresses, split_address
from rtp_llm.config.worker_key import read_worker_key
from rtp_llm.disagg.decode import DecodeEngine, Patience
from rtp_llm.disagg.layout import BlockPart, CacheLayout, fingerprint, memory_of
from rtp_llm.disagg.listener import Listener
from rtp_llm.disagg.messages import PROTOCOL, Welcome
from rtp_llm.disagg.metrics import TransferMetrics
from rtp_llm.disagg.model_digest import model_digest
from rtp_llm.disagg.peers import MismatchError, Peers, wait_for_all
from rtp_llm.disagg.pinned_pool import PinnedPool
from rtp_llm.disagg.prefill import PrefillEngine
from rtp_llm.disagg.prompt_writer import PinningSendBuffer, PromptWriter
from rtp_llm.disagg.receive_buffers import InPlaceReceiveBuffer, ReceiveBuffer, StagedReceiveBuffer
from rtp_llm.disagg.send_buffers import InPlaceSendBuffer, StagedSendBuffer
from rtp_llm.disagg.settings import WriterSettings
from rtp_llm.disagg.transports.registry import offer_blocks, take_blocks
from rtp_llm.disagg.worker_key import WorkerKey
from rtp_llm.engine.messages import EngineReady, EngineStartError
from rtp_llm.engine.waker import Waker

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings
    from rtp_llm.device import Device
    from rtp_llm.engine.build import BuiltEngine

_logger = logging.getLogger("rtp_llm.engine")
# How long the start waits for prefill workers; later ones are found later.
_HANDSHAKE_SECONDS = 2.0


@dataclass(frozen=True)
class BuiltWorker:
    """A worker that is ready to step, and the metrics of what was built."""

    engine: PrefillEngine | DecodeEngine
    ready: EngineReady
    step_group: None = None  # it has one rank


def build_worker(settings: Settings, built: BuiltEngine) -> BuiltWorker:
    """A prefill or decode worker around an engine, as the role says.

    Raises:
        EngineStartError: the address is taken, or a prefill worker's blocks mean something else.
        ValueError: settings that cannot work.
    """
    layout = CacheLayout(built.worker.runner.cache)
    print_of = _fingerprint(settings, built)
    if settings.role == "prefill":
        return _prefill(settings, built, layout, print_of)
    return _decode(settings, built, layout, print_of)


def _fingerprint(settings: Settings, built: BuiltEngine) -> str:
    runner, ready = built.worker.runner, built.ready
    dummy = settings.load_format == "dummy"
    content = "dummy" if dummy else model_digest(settings.model)
    return fingerprint(
        runner.model.config,
        runner.cache,
        weights=ready.dtype,
        quantization=ready.quantization,
        content=content,
        speculative=_drafts(settings),
    )


def _drafts(settings: Settings) -> str:
    """What drafts here from keys and values of its own, which travel. Other drafts are made of
    tokens, which both workers have, and are each one's own business."""
    if not settings.has_draft_head:
        return "none"
    drafts = f"{settings.speculative}:{settings.num_speculative_tokens}"
    if settings.samples_drafts:  # what is sent of a sequence has no first draft then
        drafts += ":sampled"
    if not settings.speculative_model:
        return drafts
    dummy = settings.load_format == "dummy"
    return f"{drafts}:{'dummy' if dummy else model_digest(settings.speculative_model)}"


def _is_host(device: Device) -> bool:
    return device.torch_device.type == "cpu"


def _reads_in_place(settings: Settings, device: Device) -> bool:
    """Blocks go from the cache itself, and into it: the host's, or a device's that a library reads.

    On a device "auto" means TCP.
    """
    return _is_host(device) or settings.kv_transport == "nixl"


def _transport(settings: Settings, device: Device) -> str:
    """What --kv-transport means on this device; what it cannot be is refused before."""
    return settings.kv_transport if _reads_in_place(settings, device) else "tcp"


def _pinned_pool(settings: Settings, layout: CacheLayout) -> PinnedPool:
    mebibytes = settings.cache_store_mem_mb
    return PinnedPool(layout, None if mebibytes is None else mebibytes << 20)


def _worker_key(settings: Settings) -> WorkerKey | None:
    path = settings.worker_key_file
    return None if path is None else WorkerKey(read_worker_key(path))


def _warn_if_open(settings: Settings) -> None:
    if settings.worker_key_file is not None:
        return
    for name in ("prefill_address", "kv_transfer_address"):
        address = getattr(settings, name)
        if address is not None and not is_loopback(split_address(name, address)[0]):
            _logger.warning(
                "whoever reaches %s may ask for prompts and their keys and values: set "
                "--worker-key-file on all workers",
                address,
            )


def _prefill(
    settings: Settings, built: BuiltEngine, layout: CacheLayout, print_of: str
) -> BuiltWorker:
    engine, waker, metrics = built.engine, Waker(), TransferMetrics()
    runner = built.worker.runner
    device, cache = runner.device, runner.cache
    transport, regions = _transport(settings, device), memory_of(cache)
    key = _worker_key(settings)
    try:
        listener = Listener(settings.prefill_address, waker, key)
        store, offers = offer_blocks(
            transport,
            listener.host,
            print_of,
            regions,
            settings.prefill_timeout + settings.kv_load_timeout,
            address=settings.kv_transfer_address,
            key=key.secret if key else b"",
            device=None if _is_host(device) else device,
        )
    except (OSError, RuntimeError) as error:
        raise EngineStartError(
            f"cannot offer blocks at {settings.prefill_address}: {error} (--prefill-address, "
            "--kv-transfer-address, --kv-transport)"
        ) from error
    _warn_if_open(settings)
    send_buffer: PinningSendBuffer
    if _reads_in_place(settings, device):
        send_buffer, pool = InPlaceSendBuffer(store, layout, metrics), None
    else:
        send_buffer = staged = StagedSendBuffer(store, layout, metrics, cache, device)
        pool = _pinned_pool(settings, layout)
        staged.prepare(built.limits.max_batch_tokens, pool.limit // 2)
    writing, prompts = WriterSettings.read(settings), engine.remote_prompts
    runner.writer = writer = PromptWriter(layout, prompts, send_buffer, device, writing)
    listener.open(Welcome(protocol=PROTOCOL, fingerprint=print_of, offers=offers))
    worker = PrefillEngine(engine, writer, store, listener, waker, metrics, pool)
    _logger.info("decode workers find this prefill worker at %s", listener.address)
    ready = msgspec.structs.replace(built.ready, prefill_address=listener.address)
    return BuiltWorker(worker, ready)


def _decode(
    settings: Settings, built: BuiltEngine, layout: CacheLayout, print_of: str
) -> BuiltWorker:
    engine, waker, key = built.engine, Waker(), _worker_key(settings)
    runner = built.worker.runner
    device, cache = runner.device, runner.cache
    try:
        secret = key.secret if key else b""
        client = take_blocks(
            _transport(settings, device),
            print_of,
            memory_of(cache),
            key=secret,
            device=None if _is_host(device) else device,
        )
    except RuntimeError as error:
        raise EngineStartError(f"cannot take blocks: {error} (--kv-transport)") from error
    peers = Peers(prefill_addresses(settings), print_of, waker, client, key)
    try:
        wait_for_all(peers, _HANDSHAKE_SECONDS)
    except MismatchError as error:
        raise EngineStartError(str(error)) from error
    patience = Patience(
        prefill=settings.prefill_timeout,
        load=settings.kv_load_timeout,
        fallback=settings.prefill_fallback,
    )
    pool = _pinned_pool(settings, layout)

    def new_buffer(parts: Sequence[BlockPart]) -> ReceiveBuffer:
        if _reads_in_place(settings, device):
            return InPlaceReceiveBuffer(layout, parts, device)
        return StagedReceiveBuffer(layout, parts, cache, device, pool)

    metrics = TransferMetrics()
    worker = DecodeEngine(engine, peers, client, waker, layout, new_buffer, patience, metrics)
    return BuiltWorker(worker, built.ready)
