"""Puts an engine and its transfers together, by role."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from rtp_llm.config.roles import is_loopback, prefill_addresses, split_address
from rtp_llm.config.worker_key import read_worker_key
from rtp_llm.disagg.channel import Bell
from rtp_llm.disagg.decode import DecodeEngine, Patience
from rtp_llm.disagg.door import Door
from rtp_llm.disagg.figures import TransferFigures
from rtp_llm.disagg.host_room import HostRoom
from rtp_llm.disagg.landings import InPlaceLanding, Landing, StagedLanding
from rtp_llm.disagg.layout import BlockPart, CacheLayout, fingerprint, memory_of
from rtp_llm.disagg.messages import PROTOCOL, Welcome
from rtp_llm.disagg.model_digest import model_digest
from rtp_llm.disagg.outlets import InPlaceOutlet, StagedOutlet
from rtp_llm.disagg.peers import MismatchError, Peers, wait_for_all
from rtp_llm.disagg.prefill import PrefillEngine
from rtp_llm.disagg.prompt_writer import KeepingOutlet, PromptWriter
from rtp_llm.disagg.settings import WriterSettings
from rtp_llm.disagg.ways import offer_blocks, take_blocks
from rtp_llm.disagg.worker_key import WorkerKey
from rtp_llm.engine.messages import EngineReady, EngineStartError

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings
    from rtp_llm.device import Device
    from rtp_llm.engine.build import BuiltEngine

_logger = logging.getLogger("rtp_llm.engine")
# How long the start waits for prefill workers; later ones are found later.
_GREETING_SECONDS = 2.0


@dataclass(frozen=True)
class BuiltWorker:
    """A worker that is ready to step, and the figures of what was built."""

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
    )


def _reads_in_place(device: Device) -> bool:
    """The host can read and write the cache itself."""
    return device.torch_device.type == "cpu"


def _transport(settings: Settings, device: Device) -> str:
    """What --kv-transport means on this device; what it cannot be is refused before."""
    return settings.kv_transport if _reads_in_place(device) else "tcp"


def _host_room(settings: Settings, layout: CacheLayout) -> HostRoom:
    mebibytes = settings.cache_store_mem_mb
    return HostRoom(layout, None if mebibytes is None else mebibytes << 20)


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
    engine, bell, figures = built.engine, Bell(), TransferFigures()
    runner = built.worker.runner
    device, cache = runner.device, runner.cache
    transport, regions = _transport(settings, device), memory_of(cache)
    expiry = settings.prefill_timeout + settings.kv_load_timeout
    key = _worker_key(settings)
    try:
        door = Door(settings.prefill_address, bell, key)
        store, offers = offer_blocks(
            transport,
            door.host,
            print_of,
            regions,
            expiry,
            address=settings.kv_transfer_address,
            key=key.secret if key else b"",
        )
    except (OSError, RuntimeError) as error:
        raise EngineStartError(
            f"cannot offer blocks at {settings.prefill_address}: {error} (--prefill-address, "
            "--kv-transfer-address, --kv-transport)"
        ) from error
    _warn_if_open(settings)
    outlet: KeepingOutlet
    if _reads_in_place(device):
        outlet, room = InPlaceOutlet(store, layout, figures), None
    else:
        outlet = staged = StagedOutlet(store, layout, figures, cache, device)
        room = _host_room(settings, layout)
        staged.prepare(built.limits.max_batch_tokens, room.limit // 2)
    writing = WriterSettings.read(settings)
    runner.writer = writer = PromptWriter(layout, engine.remote_prompts, outlet, device, writing)
    door.open(Welcome(protocol=PROTOCOL, fingerprint=print_of, offers=offers))
    worker = PrefillEngine(engine, writer, store, door, bell, figures, room)
    _logger.info("decode workers find this prefill worker at %s", door.address)
    ready = msgspec.structs.replace(built.ready, prefill_address=door.address)
    return BuiltWorker(worker, ready)


def _decode(
    settings: Settings, built: BuiltEngine, layout: CacheLayout, print_of: str
) -> BuiltWorker:
    engine, bell, key = built.engine, Bell(), _worker_key(settings)
    runner = built.worker.runner
    device, cache = runner.device, runner.cache
    try:
        secret = key.secret if key else b""
        client = take_blocks(_transport(settings, device), print_of, memory_of(cache), key=secret)
    except RuntimeError as error:
        raise EngineStartError(f"cannot take blocks: {error} (--kv-transport)") from error
    peers = Peers(prefill_addresses(settings), print_of, bell, client, key)
    try:
        wait_for_all(peers, _GREETING_SECONDS)
    except MismatchError as error:
        raise EngineStartError(str(error)) from error
    patience = Patience(
        prefill=settings.prefill_timeout,
        load=settings.kv_load_timeout,
        fallback=settings.prefill_fallback,
    )
    room = _host_room(settings, layout)

    def land(parts: Sequence[BlockPart]) -> Landing:
        if _reads_in_place(device):
            return InPlaceLanding(layout, parts)
        return StagedLanding(layout, parts, cache, device, room)

    figures = TransferFigures()
    worker = DecodeEngine(engine, peers, client, bell, layout, land, patience, figures)
    return BuiltWorker(worker, built.ready)
