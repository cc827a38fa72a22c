# SPDX-License-Identifier: Apache-2.0
"""An engine that lets prefill workers compute prompts, and continues after them."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from rtp_llm.disagg.decode.awaited_prompt import AwaitedPrompt
from rtp_llm.disagg.engine_with_transfers import EngineWithTransfers
from rtp_llm.disagg.rank_messages import LoadOrder
from rtp_llm.disagg.wire.messages import Failed, Finished, Prefill, Prefilled
from rtp_llm.engine.columns import first_token_columns
from rtp_llm.engine.messages import (
    INDEX_BITS,
    AddRequest,
    EngineStats,
    FromEngine,
    RequestFailed,
    StepOutput,
)
from rtp_llm.request.sampling_params import SamplingParams
from rtp_llm.worker.cache.transfer.cache_keys import chain_keys

if TYPE_CHECKING:
    from rtp_llm.disagg.decode.peers import Peer, Peers
    from rtp_llm.disagg.decode.receiver import Receiving
    from rtp_llm.disagg.metrics import TransferMetrics
    from rtp_llm.engine.engine import Engine
    from rtp_llm.engine.waker import Waker
    from rtp_llm.worker.cache.transfer.layout import BlockPart, CacheLayout

_logger = logging.getLogger("rtp_llm.engine")
_TICK_MILLISECONDS = 50


@dataclass(frozen=True)
class Patience:
    """Timeouts in seconds: ``prefill`` for another worker to compute a prompt, from the time it is
    asked; ``load`` for the last blocks to arrive after that. With ``fallback`` the prompt is then
    computed here, otherwise the request fails."""

    prefill: float
    load: float
    fallback: bool


class DecodeEngine(EngineWithTransfers):
    """An engine whose prompts may be computed by another worker.

    The scheduler first allocates the sequence's blocks; only then is the prefill worker asked, and
    blocks are loaded while it computes. They are held until the load has certainly stopped,
    whatever happens to the request in the meantime.
    """

    def __init__(
        self,
        engine: Engine,
        peers: Peers,
        receiver: Receiving,
        waker: Waker,
        layout: CacheLayout,
        patience: Patience,
        metrics: TransferMetrics,
    ) -> None:
        super().__init__(engine)
        self._peers, self._receiver, self._waker = peers, receiver, waker
        self._layout, self._patience, self._metrics = layout, patience, metrics
        self._awaited: dict[int, AwaitedPrompt] = {}  # by sequence
        self._by_name: dict[int, AwaitedPrompt] = {}

    # -- as an engine --------------------------------------------------------------------------

    @property
    def descriptors(self) -> Sequence[int]:
        return self._waker.descriptor, self._receiver.fileno(), *self._engine.descriptors

    @property
    def patience(self) -> int | None:
        """Deadlines expire without an event."""
        return _TICK_MILLISECONDS if self._awaited else self._engine.patience

    @property
    def has_work(self) -> bool:
        """Whether the engine has work, or a transfer is not finished."""
        return self._engine.has_work or bool(self._awaited)

    @property
    def has_idle_work(self) -> bool:
        """Whether the engine has idle work."""
        return self._engine.has_idle_work and not self._awaited

    def add(self, request: AddRequest) -> None:
        """Queue a request. Raises RequestError."""
        if not self._may_prefill_remotely(request):
            self._engine.add(request)
            return
        (seed,) = self._engine.add(request, remote_prompt=True)
        tokens = np.array(request.prompt_token_ids, np.int32)
        awaited = AwaitedPrompt(
            request=request,
            seed=seed,
            keys=chain_keys(tokens, self._layout.block_size, request.extra_key),
        )
        self._awaited[awaited.sequence] = awaited

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

    def abort(self, sequences: Sequence[tuple[int, int]]) -> None:
        """Stop sequences; their loads are cancelled."""
        self._engine.abort(sequences)
        for request_id, index in sequences:
            self._forget(request_id << INDEX_BITS | index)

    def _forget(self, sequence: int) -> None:
        """Forget a prompt that nobody needs any more."""
        awaited = self._awaited.get(sequence)
        if awaited is None:
            return
        awaited.alive = False
        if awaited.peer is None:  # still waiting for its turn: nothing was started
            del self._awaited[awaited.sequence]
        else:
            self._stop(awaited, "cancelled", "the request was aborted")

    def stats(self) -> EngineStats:
        """The engine's metrics, with those of transfers."""
        counts, failures = self._metrics.read()
        counts["awaited_prompts"] = len(self._awaited)
        return msgspec.structs.replace(
            self._engine.stats(), transfers=counts, transfer_failures=failures
        )

    def step(self) -> Sequence[FromEngine]:
        """Handle what arrived, step, and ask for the prompts that are next."""
        self._waker.clear()
        self._receiver.clear()
        for peer, message in self._peers.take():
            self._hear(peer, message)
        arrived: list[FromEngine] = []
        for awaited in list(self._by_name.values()):
            arrived += self._follow(awaited)
        outputs = self._engine.step()
        for output in outputs:
            if isinstance(output, RequestFailed):
                self._forget(output.request_id << INDEX_BITS)
        for sequence, slot, cached in self._engine.remote_prompts.take_receivers():
            awaited = self._awaited[sequence]
            awaited.slot, awaited.cached = slot, cached
            arrived += self._ask(awaited)
        self._receiver.deliver()
        return [*arrived, *outputs]

    def close(self) -> None:
        """End connections; only tests need this, a process just ends."""
        self._peers.close()
        self._receiver.close()

    # -- a prompt's way ------------------------------------------------------------------------

    def _ask(self, awaited: AwaitedPrompt) -> list[FromEngine]:
        """The sequence owns its blocks: ask a worker to compute them, and load them from it.

        Returns the message to the client if the load cannot even begin.
        """
        awaited.asked = time.monotonic()
        peer = self._peers.choose(awaited.keys, self._layout.block_size)
        if peer is None:
            self._metrics.fail("connect_failed")
            self._engine.remote_prompts.prefill_locally(awaited.sequence)
            del self._awaited[awaited.sequence]
            return []
        return self._ask_peer(awaited, peer)

    def _ask_another(self, failed: AwaitedPrompt, why: str) -> list[FromEngine] | None:
        """Like ``_ask``, as long as half of the time is left; None if no worker was asked."""
        if self._left(failed) < self._patience.prefill / 2:
            return None
        tried = [*failed.tried, failed.peer] if failed.peer else failed.tried
        peer = self._peers.choose(failed.keys, self._layout.block_size, without=tried)
        if peer is None:
            return None
        _logger.warning("another prefill worker is asked for a prompt: %s", why)
        self._metrics.add(retries=1)
        awaited = AwaitedPrompt(
            failed.request, failed.seed, failed.keys, asked=failed.asked, tried=tried
        )
        awaited.slot, awaited.cached = failed.slot, failed.cached
        self._awaited[awaited.sequence] = awaited
        return self._ask_peer(awaited, peer)

    def _ask_peer(self, awaited: AwaitedPrompt, peer: Peer) -> list[FromEngine]:
        assert peer.connection is not None  # it is ready
        awaited.peer, awaited.name = peer, secrets.randbits(63)
        awaited.began = time.monotonic()
        self._by_name[awaited.name] = awaited
        parts, addresses = self._hold(awaited), peer.transfer_addresses
        order = LoadOrder(awaited.name, addresses, parts, timeout=self._left(awaited))
        try:
            awaited.load = self._receiver.begin(order)
        except (RuntimeError, ValueError) as error:  # no memory for its buffer, or refused
            awaited.told = True  # it was never asked
            awaited.problem = ("load_failed", f"{type(error).__name__}: {error}")
            return self._fail(awaited)
        peer.connection.send(self._order(awaited, peer))
        peer.asked_tokens += len(awaited.request.prompt_token_ids)
        peer.remember(awaited.keys)
        self._metrics.add(asked=1)
        return []

    def _order(self, awaited: AwaitedPrompt, peer: Peer) -> Prefill:
        request = awaited.request
        return Prefill(
            name=awaited.name,
            prompt_token_ids=request.prompt_token_ids,
            params=msgspec.structs.replace(request.sampling, seed=awaited.seed),
            extra_key=request.extra_key,
            patience=self._left(awaited) + self._patience.load,
            transport=peer.transport,
            grammar=request.grammar,
            thinking=request.thinking,
            tenant=request.tenant,
            tenant_weight=request.tenant_weight,
        )

    def _hold(self, awaited: AwaitedPrompt) -> list[BlockPart]:
        size = self._layout.block_size
        first, end = awaited.cached // size, -(-len(awaited.request.prompt_token_ids) // size)
        held = self._engine.remote_prompts.pin(awaited.sequence, first, end)
        return [
            self._layout.held(group, first, blocks, awaited.keys)
            for group, blocks in enumerate(held)
        ]

    def _hear(self, peer: Peer, message: object) -> None:
        match message:
            case Prefilled():
                if awaited := self._by_name.get(message.name):
                    self._computed(peer, awaited)
                    self._take_first(awaited, message)
            case Failed():
                if awaited := self._by_name.get(message.name):
                    self._computed(peer, awaited)
                    awaited.told = True
                    self._stop(awaited, f"prefill_{message.kind}", message.message)
            case None:
                _logger.warning("prefill worker %s is lost", peer.address)
                for awaited in self._by_name.values():
                    if awaited.peer is peer:
                        awaited.told = True
                        reason = f"the connection to prefill worker {peer.address} is lost"
                        self._stop(awaited, "peer_lost", reason)

    def _take_first(self, awaited: AwaitedPrompt, first: Prefilled) -> None:
        size, length = self._engine.limits.vocab_size, len(awaited.request.prompt_token_ids)
        drafts = self._engine.remote_prompts.takes_draft_state(first.draft_state)
        if 0 <= first.token < size and 0 <= first.cached_tokens <= length and drafts:
            awaited.first, awaited.first_at = first, time.monotonic()
            return
        reason = f"token {first.token} of {size}, {first.cached_tokens} of {length} tokens cached"
        if not drafts:
            reason += f", {len(first.draft_state)} bytes that are no state of drafts"
        self._stop(awaited, "invalid_answer", reason)

    @staticmethod
    def _computed(peer: Peer, awaited: AwaitedPrompt) -> None:
        tokens = len(awaited.request.prompt_token_ids)
        peer.asked_tokens = max(0, peer.asked_tokens - tokens)

    def _stop(self, awaited: AwaitedPrompt, code: str, reason: str) -> None:
        """Cancel the transfer; `_follow` continues when the load has stopped."""
        if awaited.problem is None:
            awaited.problem = (code, reason)
        if awaited.load is not None:
            awaited.load.cancel()

    def _follow(self, awaited: AwaitedPrompt) -> list[FromEngine]:
        """Check the progress of a prompt; returns what its arrival or end means for the client."""
        load = awaited.load
        if load is None:
            return []
        done = load.advance()
        if awaited.problem is None:
            if done and load.code != "none":
                self._stop(awaited, load.code, load.message)
            elif not done and awaited.first is not None and self._is_late(awaited):
                reason = (
                    f"blocks did not arrive within {self._patience.load:g} s of the first token"
                )
                self._stop(awaited, "buffer_timeout", reason)
            elif done and awaited.first is None and self._is_overdue(awaited):
                longest = self._patience.prefill + self._patience.load
                reason = f"the blocks came, but no token within {longest:g} s of the question"
                self._stop(awaited, "prefill_timeout", reason)
        if not done:
            return []
        if awaited.problem is not None:
            return self._fail(awaited)
        return [] if awaited.first is None else self._deliver(awaited, awaited.first)

    def _is_late(self, awaited: AwaitedPrompt) -> bool:
        return time.monotonic() - awaited.first_at > self._patience.load

    def _is_overdue(self, awaited: AwaitedPrompt) -> bool:
        return self._left(awaited) < -self._patience.load

    def _left(self, awaited: AwaitedPrompt) -> float:
        """Remaining seconds for the prompt to be computed, by whichever worker."""
        return awaited.asked + self._patience.prefill - time.monotonic()

    def _deliver(self, awaited: AwaitedPrompt, first: Prefilled) -> list[FromEngine]:
        if awaited.load is not None:
            awaited.load.finish()
        self._end(awaited)
        cached = first.cached_tokens
        finish = self._engine.remote_prompts.finish_recv(
            awaited.sequence,
            awaited.slot,
            first.token,
            cached_tokens=cached,
            draft_state=first.draft_state,
        )
        seconds = time.monotonic() - awaited.began
        self._metrics.add(delivered=1, seconds=seconds)
        output: StepOutput = first_token_columns(
            awaited.request.request_id,
            first.token,
            finish=finish,
            cached_tokens=cached,
            logprobs=first.logprobs,
        )
        return [output]

    def _fail(self, awaited: AwaitedPrompt) -> list[FromEngine]:
        """The load has stopped without success: let another worker compute the prompt, compute it
        here, or fail the request."""
        code, reason = awaited.problem or ("unknown", "")
        if awaited.load is not None:
            awaited.load.abandon()
            awaited.load = None  # its memory: another worker may be asked now
        self._metrics.fail(code)
        self._end(awaited)
        if not awaited.alive:
            return []
        # A failure of this worker itself would repeat with any other prefill worker.
        other = None if code == "load_failed" else self._ask_another(awaited, f"{reason} ({code})")
        if other is not None:
            return other
        if self._patience.fallback:
            _logger.warning("a prompt is computed here: %s (%s)", reason, code)
            self._metrics.add(fallbacks=1)
            self._engine.remote_prompts.prefill_locally(awaited.sequence)
            return []
        self._engine.abort([(awaited.request.request_id, 0)])
        message = f"the prefill worker failed ({code}): {reason}; try again"
        request_id = awaited.request.request_id
        return [RequestFailed(request_id=request_id, kind="internal", message=message)]

    def _end(self, awaited: AwaitedPrompt) -> None:
        """End a prompt: nothing writes to its blocks any more, and the other side may release its
        own."""
        self._engine.remote_prompts.unpin(awaited.sequence)
        peer = awaited.peer
        if peer is not None and peer.connection is not None and not awaited.told:
            peer.connection.send(Finished(name=awaited.name))
            if awaited.first is None:
                self._computed(peer, awaited)
        del self._awaited[awaited.sequence], self._by_name[awaited.name]
