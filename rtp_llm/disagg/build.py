# SPDX-License-Identifier: Apache-2.0
"""Connects an engine to other workers, by role."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from rtp_llm.config.roles import is_loopback, prefill_addresses, split_address
from rtp_llm.disagg.decode.decode_connector import DecodeConnector, Timeouts
from rtp_llm.disagg.decode.peers import MismatchError, Peers, wait_for_all
from rtp_llm.disagg.metrics import TransferMetrics
from rtp_llm.disagg.prefill.listener import Listener
from rtp_llm.disagg.prefill.prefill_connector import PrefillConnector
from rtp_llm.disagg.rank_parts import RankParts
from rtp_llm.disagg.wire.fingerprint import fingerprint
from rtp_llm.disagg.wire.messages import PROTOCOL, Offer, Welcome
from rtp_llm.disagg.wire.model_digest import model_digest
from rtp_llm.engine.messages import EngineReady, EngineStartError
from rtp_llm.engine.profiler import Profiler
from rtp_llm.engine.waker import Waker
from rtp_llm.worker.ranks.rank_group import RankGroup

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings
    from rtp_llm.engine.engine import Engine
    from rtp_llm.engine.serving import StepGroup
    from rtp_llm.engine.start.build import BuiltEngine
    from rtp_llm.worker.kv_connector import WorkerConnector

_logger = logging.getLogger("rtp_llm.engine")
# How long a start waits for prefill workers; workers that come later are found later.
_HANDSHAKE_SECONDS = 2.0


@dataclass(frozen=True)
class BuiltWorker:
    """A connected engine that is ready to step, and the facts about it."""

    engine: Engine
    ready: EngineReady
    step_group: StepGroup | None
    profiler: Profiler | None


def build_worker(settings: Settings, built: BuiltEngine) -> BuiltWorker:
    """Connect an engine as a prefill or decode worker, by the configured role.

    Raises:
        EngineStartError: the address is taken, or a prefill worker has incompatible blocks.
        ValueError: settings that cannot work.
    """
    try:
        parts = RankParts(settings, built.worker.runner, built.tensor)
        parts.fingerprint = built.tensor.agree_on(_fingerprint(parts, built.ready), str)
        if settings.role == "prefill":
            return _prefill(parts, built)
        return _decode(parts, built)
    except BaseException:
        built.tensor.give_up()
        raise


def _fingerprint(parts: RankParts, ready: EngineReady) -> str:
    settings, dummy = parts.settings, parts.settings.load_format == "dummy"
    content = "dummy" if dummy else model_digest(settings.model)
    return fingerprint(
        parts.runner.model.config,
        parts.sources.whole,
        parts.layout.block_size,
        weights=ready.dtype,
        quantization=ready.quantization,
        content=content,
        speculative=_drafts(settings),
        ranks=parts.size,
    )


def _drafts(settings: Settings) -> str:
    """The drafter here if it has keys and values of its own, which are transferred. Other drafters
    need only tokens, which both workers have, so each worker is free to choose."""
    if not settings.has_draft_head:
        return "none"
    drafts = f"{settings.speculative}:{settings.num_speculative_tokens}"
    if settings.samples_drafts:  # the sent state of a sequence has no first draft then
        drafts += ":sampled"
    if not settings.speculative_model:
        return drafts
    dummy = settings.load_format == "dummy"
    return f"{drafts}:{'dummy' if dummy else model_digest(settings.speculative_model)}"


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


def _prefill(parts: RankParts, built: BuiltEngine) -> BuiltWorker:
    settings, engine = parts.settings, built.engine
    waker, metrics = Waker(), TransferMetrics()
    try:
        listener = Listener(settings.prefill_address, waker, parts.key)
    except OSError as error:
        raise EngineStartError(
            f"cannot offer blocks at {settings.prefill_address}: {error} (--prefill-address)"
        ) from error
    store, own_offers = parts.offer(built.tensor.agree_on(listener.host, str))
    offers: list[Offer] = list(chain(*built.tensor.gather(own_offers, list[Offer])))
    _warn_if_open(settings)
    tokens = built.limits.max_batch_tokens
    group = _group(parts.sender(store, engine.kv_blocks, metrics, tokens), built, waker)
    listener.open(Welcome(protocol=PROTOCOL, fingerprint=parts.fingerprint, offers=offers))
    pool = parts.sending_pool
    engine.connect(PrefillConnector(engine, group, listener, waker, metrics, pool))
    _logger.info("decode workers find this prefill worker at %s", listener.address)
    ready = msgspec.structs.replace(built.ready, prefill_address=listener.address)
    return BuiltWorker(engine, ready, built.step_group, built.profiler)


def _decode(parts: RankParts, built: BuiltEngine) -> BuiltWorker:
    settings, waker, own = parts.settings, Waker(), parts.loads()
    group = _group(own, built, waker)
    of = parts.fingerprint, waker, own.client, parts.key
    peers = Peers(prefill_addresses(settings), *of, check_ranks=own.check)
    try:
        wait_for_all(peers, _HANDSHAKE_SECONDS)
    except MismatchError as error:
        raise EngineStartError(str(error)) from error
    if settings.prefill_workers.startswith("@"):
        peers.follow(partial(prefill_addresses, settings))
    timeouts = Timeouts(
        prefill=settings.prefill_timeout,
        load=settings.kv_load_timeout,
        fallback=settings.prefill_fallback,
    )
    of_engine = built.engine, peers, group, waker
    built.engine.connect(DecodeConnector(*of_engine, parts.layout, timeouts, TransferMetrics()))
    return BuiltWorker(built.engine, built.ready, built.step_group, built.profiler)


def _group(own: WorkerConnector, built: BuiltEngine, waker: Waker) -> RankGroup:
    """Connect this rank's worker; returns it with those of the other ranks."""
    built.worker.connect(own)
    group = RankGroup(own, built.ranks_worker)
    group.on_news(waker.wake)
    return group
