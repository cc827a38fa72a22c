# SPDX-License-Identifier: Apache-2.0
"""Engines whose n-grams the device matches, compared with the host's matcher."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rtp_llm.native import load_runtime
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.worker.speculative.device_proposer import DeviceProposer
from rtp_llm.worker.speculative.ngram_drafter import NgramDrafter

if TYPE_CHECKING:
    from pathlib import Path

    from rtp_llm._runtime import Drafts, Result
    from rtp_llm.worker.new_sequences import NewSequences
    from rtp_llm.worker.plan.step_plan import StepPlan
    from rtp_llm.worker.worker import StepHandle


class _BothProposers(DeviceProposer):
    """Proposes what the device finds, and knows what the host would have found."""

    def __init__(self, num_tokens: int, min_n: int, max_n: int) -> None:
        super().__init__(num_tokens)
        self._host = load_runtime().NgramProposer(min_n=min_n, max_n=max_n, num_tokens=num_tokens)
        self.expected: dict[int, list[int]] = {}

    def add(self, sequences: NewSequences) -> None:
        super().add(sequences)
        if sequences.sampling.speculate:
            self._host.add(sequences.ids, sequences.prompt)

    def end(self, ids: Iterable[int]) -> None:
        ids = list(ids)
        super().end(ids)
        self._host.end(ids)

    def propose(self, in_flight: StepPlan | None) -> Drafts | None:
        self.expected = {}
        if (found := self._host.propose()) is not None:
            ids, tokens, _ = found
            self.expected = dict(zip(ids.tolist(), tokens.tolist(), strict=True))
        return super().propose(in_flight)

    def observe(self, result: Result) -> None:
        super().observe(result)
        self._host.observe(result)


class ComparingEngine(TinyEngine):
    """Asserts in each step that the drafts are those of the host; steps do not overlap."""

    def __init__(
        self, folder: Path, drafts: int, *, min_n: int = 2, max_n: int = 4, **settings: Any
    ) -> None:
        self.found = self.missing = 0  # drafts
        self._both = _BothProposers(drafts, min_n, max_n)
        ngrams = {"prompt_lookup_min": min_n, "prompt_lookup_max": max_n}
        super().__init__(
            folder,
            speculative="ngram",
            num_speculative_tokens=drafts,
            proposer=self._both,
            enable_overlap=False,
            **ngrams,
            **settings,
        )
        drafter = self.built.worker.drafter
        assert isinstance(drafter, NgramDrafter)
        self.drafter = drafter
        worker = self.built.worker
        self._execute, worker.execute = worker.execute, self._compare  # type: ignore[method-assign]

    def _compare(self, plan: StepPlan | None, *, more: bool = False) -> StepHandle | None:
        handle = self._execute(plan, more=more)
        if plan is not None:
            self._compare_drafts(plan)
        return handle

    def _compare_drafts(self, plan: StepPlan) -> None:
        sampled = self.built.worker.runner.sampled
        assert sampled is not None
        drafts = sampled.drafts.tolist()
        for first, end in zip(plan.row_cu[:-1].tolist(), plan.row_cu[1:].tolist(), strict=True):
            count = end - first - 1
            expected = self._both.expected.get(int(plan.row_ids[first]), [-1] * count)
            assert drafts[first : first + count] == expected[:count]
            if expected and expected[0] >= 0:
                self.found += count
            else:
                self.missing += count

    def assert_all_free(self) -> None:
        super().assert_all_free()
        histories = self.drafter.histories
        assert histories.num_sequences == 0
        assert sorted(histories._free) == list(range(len(histories.lens)))
