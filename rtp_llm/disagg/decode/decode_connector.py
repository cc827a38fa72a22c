# SPDX-License-Identifier: Apache-2.0
"""The scheduler side of a decode worker: prefill workers compute its prompts."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from rtp_llm.disagg.decode.group_loads import GroupLoads
from rtp_llm.disagg.decode.pending_prompt import PendingPrompt
from rtp_llm.disagg.decode.rank_loads import RankLoads
from rtp_llm.disagg.rank_messages import LoadOrder
from rtp_llm.disagg.wire.messages import Failed, Finished, Prefill, Prefilled
from rtp_llm.engine.columns import first_token_columns
from rtp_llm.engine.kv_connector import Allocation, KvConnector
from rtp_llm.engine.messages import (
    AddRequest,
    EngineOutput,
    EngineStats,
    RequestFailed,
    StepOutput,
)
from rtp_llm.request.sampling_params import SamplingParams
from rtp_llm.worker.cache.transfer.cache_keys import chain_keys

if TYPE_CHECKING:
    from rtp_llm.disagg.decode.peers import Peer, Peers
    from rtp_llm.disagg.metrics import TransferMetrics
    from rtp_llm.engine.engine import Engine
    from rtp_llm.engine.waker import Waker
    from rtp_llm.worker.cache.transfer.layout import BlockPart, CacheLayout
    from rtp_llm.worker.ranks.rank_group import RankGroup

_logger = logging.getLogger("rtp_llm.engine")
_TICK_MILLISECONDS = 50


@dataclass(frozen=True)
class Timeouts:
    """In seconds: ``prefill`` for other workers to compute a prompt, from the time the first one is
    asked; ``load`` for the last blocks to arrive after that. With ``fallback`` the prompt is then
    computed here, otherwise the request fails."""

    prefill: float
    load: float
    fallback: bool


class DecodeConnector(KvConnector):
    """Lets prefill workers compute prompts.

    The scheduler first allocates the sequence's blocks; only then is the prefill worker asked, and
    blocks are loaded while it computes. They are pinned until the load has certainly stopped,
    whatever happens to the request in the meantime.
    """

    def __init__(
        self,
        engine: Engine,
        peers: Peers,
        group: RankGroup,
        waker: Waker,
        layout: CacheLayout,
        timeouts: Timeouts,
        metrics: TransferMetrics,
    ) -> None:
        """``group``: the ranks' RankLoads."""
        self._engine, self._blocks = engine, engine.kv_blocks
        own = group.own
        assert isinstance(own, RankLoads)
        self._peers, self._own, self._waker = peers, own, waker
        self._loads = GroupLoads(group)
        self._layout, self._timeouts, self._metrics = layout, timeouts, metrics
        self._pending: dict[int, PendingPrompt] = {}  # by sequence
        self._by_name: dict[int, PendingPrompt] = {}
        self._outputs: list[EngineOutput] = []  # for the end of this step

    # -- requests ------------------------------------------------------------------------------

    def add_request(self, request: AddRequest, seeds: Sequence[int]) -> None:
        if not self._may_prefill_remotely(request):
            return
        tokens = np.array(request.prompt_token_ids, np.int32)
        keys = chain_keys(tokens, self._layout.block_size, request.extra_key)
        pending = PendingPrompt(request, seeds[0], keys)
        self._pending[pending.sequence] = pending

    def _may_prefill_remotely(self, request: AddRequest) -> bool:
        """Prompts with no sampled token, several sequences, prompt log-probabilities, a single
        output token, or more than token ids stay here."""
        params = request.params
        if not isinstance(params, SamplingParams):
            return False
        if request.mm_features or request.mrope_positions:
            return False
        longest = self._engine.limits.max_model_len - len(request.prompt_token_ids)
        tokens = min(params.max_tokens or longest, longest)
        if params.n > 1 or params.prompt_logprobs is not None or tokens < 2:
            return False
        return any(peer.ready for peer in self._peers.all)

    def get_num_new_matched_tokens(self, sequence: int, num_computed_tokens: int) -> int:
        """All tokens of a prompt that is not computed yet."""
        pending = self._pending.get(sequence)
        if pending is None:
            return 0
        return len(pending.request.prompt_token_ids) - num_computed_tokens

    def update_state_after_alloc(self, allocation: Allocation) -> None:
        """Ask a worker to compute the prompt, and load it from there."""
        pending = self._pending[allocation.sequence]
        pending.slot, pending.cached = allocation.slot, allocation.num_computed_tokens
        pending.requested_at = time.monotonic()
        peer = self._peers.choose(pending.keys, self._layout.block_size)
        if peer is not None:
            self._outputs += self._ask(pending, peer)
            return
        self._metrics.fail("connect_failed")
        self._blocks.recompute(pending.sequence)
        del self._pending[pending.sequence]

    def request_finished(self, sequences: Sequence[int]) -> None:
        """Cancel the loads of prompts that nobody needs any more."""
        for sequence in sequences:
            pending = self._pending.get(sequence)
            if pending is None:
                continue
            pending.alive = False
            if pending.peer is None:  # still waiting for its turn: nothing was started
                del self._pending[sequence]
            else:
                self._stop(pending, "cancelled", "the request was aborted")

    # -- steps ---------------------------------------------------------------------------------

    @property
    def descriptors(self) -> Sequence[int]:
        return self._waker.descriptor, self._own.client.fileno()

    @property
    def timeout_ms(self) -> int | None:
        """Deadlines expire without an event."""
        return _TICK_MILLISECONDS if self._pending else None

    @property
    def has_work(self) -> bool:
        return bool(self._pending)

    def begin_step(self) -> Sequence[EngineOutput]:
        self._waker.clear()
        self._own.client.clear()
        for peer, message in self._peers.take():
            self._receive(peer, message)
        self._loads.poll()
        arrived: list[EngineOutput] = []
        for pending in list(self._by_name.values()):
            arrived += self._follow(pending)
        return arrived

    def end_step(self, outputs: Sequence[EngineOutput]) -> Sequence[EngineOutput]:
        self._loads.deliver()
        ready, self._outputs = self._outputs, []
        return ready

    def add_stats(self, stats: EngineStats) -> EngineStats:
        counts, failures = self._metrics.read()
        counts["awaited_prompts"] = len(self._pending)
        return msgspec.structs.replace(stats, transfers=counts, transfer_failures=failures)

    def close(self) -> None:
        self._peers.close()
        self._own.client.close()

    # -- a prompt's course ---------------------------------------------------------------------

    def _ask_another(self, failed: PendingPrompt, why: str) -> list[EngineOutput] | None:
        """Ask another worker as long as half of the time is left; None if none was asked."""
        if self._left(failed) < self._timeouts.prefill / 2:
            return None
        tried = [*failed.tried, failed.peer] if failed.peer else failed.tried
        peer = self._peers.choose(failed.keys, self._layout.block_size, without=tried)
        if peer is None:
            return None
        _logger.warning("another prefill worker is asked for a prompt: %s", why)
        self._metrics.add(retries=1)
        pending = PendingPrompt(
            failed.request,
            failed.seed,
            failed.keys,
            requested_at=failed.requested_at,
            tried=tried,
        )
        pending.slot, pending.cached = failed.slot, failed.cached
        self._pending[pending.sequence] = pending
        return self._ask(pending, peer)

    def _ask(self, pending: PendingPrompt, peer: Peer) -> list[EngineOutput]:
        """Returns the message to the client if the load cannot even start."""
        assert peer.connection is not None  # it is ready
        pending.peer, pending.name = peer, secrets.randbits(63)
        pending.started_at = time.monotonic()
        self._by_name[pending.name] = pending
        parts, addresses = self._hold(pending), peer.transfer_addresses
        order = LoadOrder(pending.name, addresses, parts, timeout=self._left(pending))
        pending.load = self._loads.start(order)
        if pending.load.code != "none":  # refused here
            pending.peer_knows = True
            return self._follow(pending)
        peer.connection.send(self._order(pending, peer))
        peer.requested_tokens += len(pending.request.prompt_token_ids)
        peer.remember(pending.keys)
        self._metrics.add(asked=1)
        return []

    def _order(self, pending: PendingPrompt, peer: Peer) -> Prefill:
        request = pending.request
        return Prefill(
            name=pending.name,
            prompt_token_ids=request.prompt_token_ids,
            params=msgspec.structs.replace(request.sampling, seed=pending.seed),
            extra_key=request.extra_key,
            timeout=self._left(pending) + self._timeouts.load,
            transport=peer.transport,
            grammar=request.grammar,
            thinking=request.thinking,
            tenant=request.tenant,
            tenant_weight=request.tenant_weight,
        )

    def _hold(self, pending: PendingPrompt) -> list[BlockPart]:
        size = self._layout.block_size
        first, end = pending.cached // size, -(-len(pending.request.prompt_token_ids) // size)
        held = self._blocks.pin(pending.sequence, first, end)
        return [
            self._layout.held(group, first, blocks, pending.keys)
            for group, blocks in enumerate(held)
        ]

    def _receive(self, peer: Peer, message: object) -> None:
        match message:
            case Prefilled():
                if pending := self._by_name.get(message.name):
                    self._computed(peer, pending)
                    self._receive_first(pending, message)
            case Failed():
                if pending := self._by_name.get(message.name):
                    self._computed(peer, pending)
                    pending.peer_knows = True
                    self._stop(pending, f"prefill_{message.kind}", message.message)
            case None:
                _logger.warning("prefill worker %s is lost", peer.address)
                for pending in self._by_name.values():
                    if pending.peer is peer:
                        pending.peer_knows = True
                        reason = f"the connection to prefill worker {peer.address} is lost"
                        self._stop(pending, "peer_lost", reason)

    def _receive_first(self, pending: PendingPrompt, first: Prefilled) -> None:
        size, length = self._engine.limits.vocab_size, len(pending.request.prompt_token_ids)
        drafts = self._blocks.takes_draft_state(first.draft_state)
        if 0 <= first.token < size and 0 <= first.cached_tokens <= length and drafts:
            pending.first, pending.first_at = first, time.monotonic()
            return
        reason = f"token {first.token} of {size}, {first.cached_tokens} of {length} tokens cached"
        if not drafts:
            reason += f", {len(first.draft_state)} bytes that are no state of drafts"
        self._stop(pending, "invalid_answer", reason)

    @staticmethod
    def _computed(peer: Peer, pending: PendingPrompt) -> None:
        tokens = len(pending.request.prompt_token_ids)
        peer.requested_tokens = max(0, peer.requested_tokens - tokens)

    def _stop(self, pending: PendingPrompt, code: str, reason: str) -> None:
        """Cancel the transfer; `_follow` continues when the load has stopped."""
        if pending.problem is None:
            pending.problem = (code, reason)
        if pending.load is not None:
            pending.load.cancel()

    def _follow(self, pending: PendingPrompt) -> list[EngineOutput]:
        """Check the progress of a prompt; returns what its arrival or end means for the client."""
        load = pending.load
        if load is None:
            return []
        done = load.done
        if pending.problem is None:
            if done and load.code != "none":
                self._stop(pending, load.code, load.message)
            elif not done and pending.first is not None and self._is_late(pending):
                reason = (
                    f"blocks did not arrive within {self._timeouts.load:g} s of the first token"
                )
                self._stop(pending, "buffer_timeout", reason)
            elif done and pending.first is None and self._is_overdue(pending):
                longest = self._timeouts.prefill + self._timeouts.load
                reason = f"the blocks came, but no token within {longest:g} s of the request"
                self._stop(pending, "prefill_timeout", reason)
        if not done:
            return []
        if pending.problem is not None:
            return self._fail(pending)
        return [] if pending.first is None else self._deliver(pending, pending.first)

    def _is_late(self, pending: PendingPrompt) -> bool:
        return time.monotonic() - pending.first_at > self._timeouts.load

    def _is_overdue(self, pending: PendingPrompt) -> bool:
        return self._left(pending) < -self._timeouts.load

    def _left(self, pending: PendingPrompt) -> float:
        """Remaining seconds for the prompt to be computed, by whichever worker."""
        return pending.requested_at + self._timeouts.prefill - time.monotonic()

    def _deliver(self, pending: PendingPrompt, first: Prefilled) -> list[EngineOutput]:
        if pending.load is not None:
            pending.load.finish()
        self._end(pending)
        cached = first.cached_tokens
        finish = self._blocks.finish_recv(
            pending.sequence,
            pending.slot,
            first.token,
            cached_tokens=cached,
            draft_state=first.draft_state,
        )
        seconds = time.monotonic() - pending.started_at
        self._metrics.add(delivered=1, seconds=seconds)
        output: StepOutput = first_token_columns(
            pending.request.request_id,
            first.token,
            finish=finish,
            cached_tokens=cached,
            logprobs=first.logprobs,
        )
        return [output]

    def _fail(self, pending: PendingPrompt) -> list[EngineOutput]:
        """The load has stopped without success: let another worker compute the prompt, compute it
        here, or fail the request."""
        code, reason = pending.problem or ("unknown", "")
        if pending.load is not None:
            pending.load.abandon()
            pending.load = None  # its memory: another worker may be asked now
        self._metrics.fail(code)
        self._end(pending)
        if not pending.alive:
            return []
        # A failure of this worker itself would repeat with any other prefill worker.
        other = None if code == "load_failed" else self._ask_another(pending, f"{reason} ({code})")
        if other is not None:
            return other
        if self._timeouts.fallback:
            _logger.warning("a prompt is computed here: %s (%s)", reason, code)
            self._metrics.add(fallbacks=1)
            self._blocks.recompute(pending.sequence)
            return []
        self._engine.abort([(pending.request.request_id, 0)])
        message = f"the prefill worker failed ({code}): {reason}; try again"
        request_id = pending.request.request_id
        return [RequestFailed(request_id=request_id, kind="internal", message=message)]

    def _end(self, pending: PendingPrompt) -> None:
        """End a prompt: nothing writes to its blocks any more, and the other side may release its
        own."""
        self._blocks.unpin(pending.sequence)
        peer = pending.peer
        if peer is not None and peer.connection is not None and not pending.peer_knows:
            peer.connection.send(Finished(name=pending.name))
            if pending.first is None:
                self._computed(peer, pending)
        del self._pending[pending.sequence], self._by_name[pending.name]
