# SPDX-License-Identifier: Apache-2.0
"""A prefill and a decode worker over tiny models in one process, stepped by hand."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from rtp_llm.config.settings import Settings
from rtp_llm.disagg.build import BuiltWorker, build_worker
from rtp_llm.disagg.process import RANK_FACTORY
from rtp_llm.engine.deltas import decode_step
from rtp_llm.engine.messages import AddRequest, RequestFailed, StepOutput
from rtp_llm.engine.ranks.tensor_ranks import RanksPlace
from rtp_llm.engine.start.build import build_engine
from rtp_llm.request.constraints import Grammar, Thinking
from rtp_llm.request.sampling_params import SamplingParams
from rtp_llm.testing.engine.tiny_engine import Outcome, ranks_folder

TIMEOUT_SECONDS = 60
# Prompts of a few blocks take several steps.
SIZES = {"seq_size_per_block": 4, "max_batch_tokens_size": 24, "max_running_requests": 8}


def prompt(length: int, seed: int = 0) -> list[int]:
    """Random tokens that the tiny models know."""
    tokens: list[int] = np.random.default_rng(seed).integers(5, 190, length).tolist()
    return tokens


class Worker:
    """One worker and what its requests gave."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        """``settings`` may have a ``factory`` of the workers of other ranks among them."""
        small = {"kv_cache_mem_mb": 8, "dtype": "float32", "num_threads": 1}
        factory = settings.pop("factory", RANK_FACTORY)
        chosen = Settings(model=str(folder), **{**small, **settings})
        self._place = ranks_folder()
        self.base = build_engine(chosen, place=RanksPlace(self._place, factory=factory))
        self.built: BuiltWorker = build_worker(chosen, self.base)
        self.engine = self.built.engine
        self.outcomes: dict[int, Outcome] = {}
        self.errors: dict[int, str] = {}
        self._last = 0

    @property
    def scheduler(self) -> Any:
        return self.base.scheduler

    @property
    def connector(self) -> Any:
        return self.engine.connector

    def add(
        self,
        prompt: Sequence[int],
        *,
        key: str = "",
        grammar: str | None = None,
        thinking: Thinking | None = None,
        tenant: str = "",
        inputs: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> int:
        """Queue a request, greedy unless it says otherwise; returns its id. ``inputs``: fields of
        AddRequest."""
        self._last += 1
        wanted = SamplingParams(**{"temperature": 0.0, "max_tokens": 16, **params})
        request = AddRequest(
            request_id=self._last,
            prompt_token_ids=list(prompt),
            params=wanted,
            extra_key=key,
            grammar=None if grammar is None else Grammar(text=grammar),
            thinking=thinking,
            tenant=tenant,
            **(inputs or {}),
        )
        self.engine.add(request)
        self.outcomes[self._last] = Outcome()
        return self._last

    def step(self) -> None:
        """One step; its results go to ``outcomes`` and ``errors``."""
        for output in self.engine.step():
            if isinstance(output, RequestFailed):
                self.errors[output.request_id] = output.message
            if not isinstance(output, StepOutput):
                continue
            for request_id, delta in decode_step(output):
                if request_id in self.outcomes:
                    outcome = self.outcomes[request_id]
                    outcome.tokens += delta.token_ids
                    outcome.finish, outcome.cached = delta.finish_reason, delta.cached_tokens
                    outcome.logprobs += delta.logprobs or []

    def transfers(self) -> dict[str, float]:
        """What it counted of transfers."""
        return self.engine.stats().transfers

    def failures(self) -> dict[str, int]:
        """Failures by code."""
        return self.engine.stats().transfer_failures

    def close(self) -> None:
        """End threads, connections and the processes of other ranks."""
        self.connector.close()
        if self.built.step_group is not None:
            self.built.step_group.leave()
        shutil.rmtree(self._place)

    def is_idle(self) -> bool:
        """No sequence is there, nothing is held, every block is back."""
        state = self.scheduler.stats()
        free = state["free_blocks"] == state["total_blocks"]
        return free and not any(state[name] for name in ("running", "waiting", "held"))


class Pair:
    """A prefill worker and a decode worker that asks it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        decode = settings.pop("decode", {})
        prefill = settings.pop("prefill", {})
        here = {"role": "prefill", "prefill_address": "127.0.0.1:0"}
        self.prefill = Worker(folder, **{**here, **settings, **prefill})
        address = self.prefill.built.ready.prefill_address
        self.decode = Worker(
            folder, role="decode", prefill_workers=address, **{**settings, **decode}
        )
        self.until(lambda: all(peer.ready for peer in self.peers.all))

    @property
    def peers(self) -> Any:
        return self.decode.connector._peers

    def step(self) -> None:
        """A step of each."""
        self.prefill.step()
        self.decode.step()

    def until(self, condition: Callable[[], bool]) -> None:
        """Step until something is so."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not condition():
            assert time.monotonic() < deadline, "it never comes"
            self.step()
            time.sleep(0.0005)

    def finished(self, *requests: int) -> bool:
        """These requests of the decode worker have ended."""
        decode = self.decode
        return all(decode.outcomes[each].finish or each in decode.errors for each in requests)

    def tokens(self, prompt: Sequence[int], **params: Any) -> list[int]:
        """The tokens of one request."""
        request = self.decode.add(prompt, **params)
        self.until(lambda: self.finished(request))
        return self.decode.outcomes[request].tokens

    def settle(self) -> None:
        """Everything comes to rest: every block of both is back."""
        self.until(lambda: self.prefill.is_idle() and self.decode.is_idle())
        self.prefill.base.engine.check_integrity()
        self.decode.base.engine.check_integrity()

    def close(self) -> None:
        """End threads and connections."""
        self.decode.close()
        self.prefill.close()


@contextmanager
def decode_worker(folder: Path, address: str, **settings: Any) -> Iterator[Worker]:
    """One that is connected to the prefill worker at `address`."""
    worker = Worker(folder, role="decode", prefill_workers=address, **settings)
    try:
        peers: Any = worker.connector._peers
        step_until(worker, lambda: all(peer.ready for peer in peers.all))
        yield worker
    finally:
        worker.close()


def step_until(worker: Worker, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it never comes"
        worker.step()
        time.sleep(0.0005)


def tokens_of(worker: Worker, tokens: list[int], **params: Any) -> list[int]:
    request = worker.add(tokens, **params)
    step_until(worker, lambda: bool(worker.outcomes[request].finish))
    return worker.outcomes[request].tokens
