# SPDX-License-Identifier: Apache-2.0
"""A real engine over a tiny model, driven by hand."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rtp_llm.config.settings import Settings
from rtp_llm.engine.deltas import decode_prompt_logprobs, decode_step, decode_vector
from rtp_llm.engine.messages import AddRequest, PromptLogprobs, RequestFailed, TokenLogprob
from rtp_llm.engine.ranks.tensor_ranks import RanksPlace
from rtp_llm.engine.start.build import build_engine
from rtp_llm.request.constraints import Grammar, Thinking
from rtp_llm.request.params import RequestParams
from rtp_llm.request.sampling_params import SamplingParams
from rtp_llm.worker.speculative.proposer import Proposer


@dataclass
class Outcome:
    """The outcome of one sequence."""

    tokens: list[int] = field(default_factory=list)
    finish: str | None = None
    error: str | None = None
    stop_token: int | None = None
    cached: int = 0
    queue_seconds: float = field(default=0.0, compare=False)  # differs between runs
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: dict[int, TokenLogprob] = field(default_factory=dict)
    pooled: list[float] | None = None
    drafts: int = field(default=0, compare=False)  # what a step verifies depends on its batch
    accepted_drafts: int = field(default=0, compare=False)


def ranks_folder() -> Path:
    """The rendezvous folder of a test's ranks; Bazel removes it if the test is killed."""
    return Path(tempfile.mkdtemp(prefix="rtp-llm-", dir=os.environ.get("TEST_TMPDIR")))


class TinyEngine:
    """Adds requests and collects what their sequences produce."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        """``settings`` may have a ``proposer`` of drafts among them, and the ``factory`` of the
        workers of other ranks."""
        proposer: Proposer | None = settings.pop("proposer", None)
        factory: str | None = settings.pop("factory", None)
        small = {
            "kv_cache_mem_mb": 8,
            "dtype": "float32",
            "num_threads": 1,
            "task": "all",
            "speculative_adaptive": False,  # a test's drafts must not depend on timing
        }
        self.settings = Settings(model=str(folder), **{**small, **settings})
        place = None
        if self.settings.ranks_per_engine > 1:
            place = RanksPlace(ranks_folder(), factory=factory)
        built = build_engine(self.settings, proposer=proposer, place=place)
        self._place = place
        self.built = built
        self.engine = built.engine
        self.ready = built.ready
        self.outcomes: dict[tuple[int, int], Outcome] = {}
        self.failures: dict[int, RequestFailed] = {}
        self._last = 0

    def close(self) -> None:
        """End the processes of other ranks."""
        if self._place is not None:
            assert self.built.step_group is not None
            self.built.step_group.leave()
            shutil.rmtree(self._place.folder)

    def add(
        self,
        prompt: Sequence[int],
        *,
        processors: Sequence[Any] = (),
        key: str = "",
        grammar: str | None = None,
        thinking: Thinking | None = None,
        inputs: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> int:
        """Queue a request, greedy unless it says otherwise; returns its id. ``inputs``: fields of
        AddRequest."""
        given = {"temperature": 0.0, "max_tokens": 16, **params}
        return self.add_request(
            prompt,
            SamplingParams(**given),
            processors,
            extra_key=key,
            grammar=None if grammar is None else Grammar(text=grammar),
            thinking=thinking,
            **(inputs or {}),
        )

    def add_request(
        self,
        prompt: Sequence[int],
        params: RequestParams,
        processors: Sequence[Any] = (),
        **more: Any,
    ) -> int:
        """Queue a request for any kind of output; returns its id."""
        self._last += 1
        request = AddRequest(
            request_id=self._last,
            prompt_token_ids=list(prompt),
            params=params,
            **more,
        )
        self.engine.add(request, processors)
        for index in range(params.n):
            self.outcomes[self._last, index] = Outcome()
        return self._last

    def fork(self, request_id: int, indexes: Sequence[int], **more: Any) -> Sequence[int]:
        """Continue sequence 0 of a request; the outcomes begin with what it has so far."""
        seeds = self.engine.fork((request_id, 0), indexes, **more)
        source = self.outcomes[request_id, 0]
        for number, index in enumerate(indexes):
            self.outcomes[request_id, index] = Outcome(
                tokens=[*source.tokens],
                cached=source.cached,
                logprobs=[*source.logprobs],
                prompt_logprobs=source.prompt_logprobs,
            )
            if more.get("last_tokens"):
                self.outcomes[request_id, index].tokens[-1] = more["last_tokens"][number]
        return seeds

    def step(self) -> None:
        """One step; its results go to ``outcomes``."""
        for output in self.engine.step():
            if isinstance(output, PromptLogprobs):
                entries = decode_prompt_logprobs(output, output.width)
                scores = self.outcomes[output.request_id, 0].prompt_logprobs
                scores.update(enumerate(entries, output.start))
                continue
            if isinstance(output, RequestFailed):
                self.failures[output.request_id] = output
                continue
            for request_id, delta in decode_step(output):
                outcome = self.outcomes[request_id, delta.index]
                if outcome.finish is not None:  # its client reads no further
                    continue
                outcome.tokens += delta.token_ids
                outcome.finish, outcome.stop_token = delta.finish_reason, delta.stop_token_id
                outcome.error = delta.error
                outcome.pooled = None if delta.pooled is None else decode_vector(delta.pooled)
                outcome.cached = delta.cached_tokens
                outcome.drafts += delta.draft_tokens
                outcome.accepted_drafts += delta.accepted_draft_tokens
                outcome.queue_seconds = delta.queue_seconds
                outcome.logprobs += delta.logprobs or []

    def run(self) -> None:
        """Step until nothing is left."""
        while self.engine.has_work:
            self.step()

    def tokens(self, prompt: Sequence[int], **params: Any) -> list[int]:
        """The tokens of one request, run to its end together with whatever else is there."""
        request_id = self.add(prompt, **params)
        self.run()
        return self.outcomes[request_id, 0].tokens

    def assert_all_free(self) -> None:
        """No sequence is left and every block is back."""
        self.engine.check_integrity()
        stats = self.engine.stats()
        assert (stats.running, stats.waiting) == (0, 0)
        assert stats.free_blocks == stats.total_blocks
