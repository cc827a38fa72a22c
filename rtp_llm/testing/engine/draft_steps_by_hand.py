# SPDX-License-Identifier: Apache-2.0
"""Steps that draft, verify and extend on plans made by hand: eagerly, and as graphs run them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rtp_llm.device import StagedNumbers
from rtp_llm.testing.engine.steps_by_hand import Case, StepsByHand
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.worker.device_step import DeviceStep
from rtp_llm.worker.graphs.step_graphs import StepGraphs
from rtp_llm.worker.inputs.graph_inputs import GraphInputs
from rtp_llm.worker.inputs.graph_sizes import GraphSize
from rtp_llm.worker.speculative.drafter import Drafter
from rtp_llm.worker.speculative.model_drafter import ModelDrafter

_VOCABULARY = 199
_FOUR, _EIGHT = GraphSize(16, 4, 4), GraphSize(8, 8, 1)
DRAFT_CASES = (
    Case([4, 4, 4, 4], [2, 3, 16, 41], _FOUR),
    Case([4], [28], _FOUR),
    Case([2, 2, 2], [5, 16, 31], _FOUR),  # each shorter than captured
    Case([4, 2, 4], [12, 9, 20], _FOUR),  # one shorter, and not the last
    Case([1, 1, 4], [33, 2, 7], _FOUR),  # two without drafts
    Case([1, 4], [0, 17], _FOUR),  # a prompt of one token among them
    Case([1, 1, 1], [40, 3, 15], _EIGHT),  # none has drafts: there is only something to extend
)


@dataclass(frozen=True)
class _Found:
    """What a step leaves: ``drafts`` [T], and of a head by slot the next drafts and states."""

    drafts: Tensor
    first: Tensor
    states: Tensor


class DraftStepsByHand(StepsByHand):
    """Of an engine with a head or a model that drafts; sequence i has slot 2 i + 3."""

    def __init__(self, engine: TinyEngine) -> None:
        super().__init__(engine)
        worker = engine.built.worker
        assert isinstance(worker.drafter, Drafter | ModelDrafter)
        assert worker.runner.sampled is not None
        self.drafter, self._sampled = worker.drafter, worker.runner.sampled
        self._slots = 0 if isinstance(self.drafter, ModelDrafter) else self.drafter.padding_slot
        self._max_rows = len(self._sampled.drafts)
        self._found: list[_Found] = []

    def graphs(self, longest: int, *sizes: GraphSize) -> StepGraphs:
        """All captured, for sequences of up to ``longest`` tokens."""
        runner, most = (
            self.runner,
            _largest(sizes),
        )
        padding = self.drafter.padding_slot
        inputs = GraphInputs(
            runner.cache,
            runner.device,
            most,
            longest,
            runner.cache.block_size,
            runner.sampled,
            padding,
        )
        graphs = StepGraphs(runner._layers, inputs, runner.device, sizes, drafts=self.drafter)
        with torch.inference_mode():
            while not graphs.complete:
                graphs.capture_next()
        return graphs

    def check_drafts(self, case: Case, graphs: StepGraphs, near: float, share: float = 1.0) -> None:
        """A replay leaves what the eager step leaves, and at least a ``share`` of its drafts."""
        self._found.clear()
        self.check(case, lambda plan: self._replay(plan, graphs), rtol=near, atol=near)
        eager, replayed = self._found
        lengths = np.array(case.lengths)
        slots = _slots(len(lengths))[: self._slots]
        rows = np.setdiff1d(np.arange(lengths.sum()), np.cumsum(lengths) - 1)  # with drafts
        same = [
            *(eager.drafts == replayed.drafts)[rows].tolist(),
            *(eager.first == replayed.first)[slots].tolist(),
        ]
        assert sum(same) >= share * len(same)
        if share == 1.0:
            torch.testing.assert_close(
                replayed.states[slots], eager.states[slots], rtol=near, atol=near
            )
        others = np.setdiff1d(np.arange(self._slots), slots)
        assert torch.equal(replayed.states[others], eager.states[others])
        assert torch.equal(replayed.first[others], eager.first[others])

    def plan(
        self, lengths: Sequence[int], prefixes: Sequence[int], sequences: Sequence[int] = ()
    ) -> Any:
        """Every token has a row, and all but a sequence's first are drafts; with ``sequences`` they
        are prompts of which nothing is sampled."""
        plan = super().plan(lengths, prefixes, sequences)
        rows = 0 if sequences else plan.num_tokens
        plan.num_rows, plan.num_outputs = rows, len(lengths) if rows else 0
        plan.row_cu = plan.cu_seqlens_q if rows else np.zeros(1, np.int32)
        plan.logit_rows = np.arange(rows, dtype=np.int32)
        slots = np.repeat(_slots(len(lengths)), lengths).astype(np.int32)
        plan.row_slots = slots[:rows]
        plan.next_tokens = np.full(len(lengths), 5, np.int32)
        if rows:
            names = -self._max_rows - np.arange(rows)
            is_first = np.isin(np.arange(rows), plan.cu_seqlens_q)
            plan.token_ids = np.where(is_first, plan.token_ids, names).astype(np.int32)
        return plan

    def run(
        self, plan: Any, graphs: StepGraphs | None = None, *, samples: bool = True
    ) -> tuple[DeviceStep, Tensor]:
        """The step, and its hidden states [T, hidden]; of each sequence some drafts are right,
        unless the tokens sampled last stay."""
        self.runner._graphs = graphs
        # Where the device is the host its arrays are the plan's, and get tokens for names.
        own: Any = SimpleNamespace(**{**vars(plan), "token_ids": plan.token_ids.copy()})
        step = self.runner.begin(own)
        self.drafter.draft(step)
        hidden = self.runner.forward(step)
        if samples:
            self._sampled.keep(self._sample(plan))
        self._sampled.verify(step)
        self.drafter.extend(step, hidden)
        return step, hidden

    def compute_prefixes(self, case: Case) -> None:
        """Compute what the sequences of a case, all of which have a prefix, continue from."""
        count = len(case.prefixes)
        with torch.inference_mode():
            self.run(self.plan(case.prefixes, [0] * count, range(count)))

    def reset(self) -> None:
        """What sequences go on from is random; no slot but theirs may be read."""
        if isinstance(self.drafter, ModelDrafter):
            return
        slots = _slots(8)
        random = torch.Generator().manual_seed(2)
        first, states = self.drafter._first, self.drafter._states
        first.copy_(torch.randint(_VOCABULARY, first.shape, generator=random))
        states[: self._slots] = torch.nan
        states[slots] = torch.randn(len(slots), states.shape[1], generator=random).to(states)

    def _sample(self, plan: Any) -> Tensor:
        """int32 [R]: of sequence i up to i % 4 drafts are right."""
        counts = np.diff(plan.row_cu)
        sequence = np.repeat(np.arange(len(counts)), counts)
        place = np.arange(plan.num_rows) - plan.row_cu[sequence]
        is_right = torch.from_numpy(place < np.minimum(sequence % 4, counts[sequence] - 1)).to(
            self._sampled.drafts.device
        )
        others = (7 * torch.arange(plan.num_rows, dtype=torch.int32) + 3) % _VOCABULARY
        drafts = self._sampled.drafts[: plan.num_rows]
        return torch.where(is_right, drafts, others.to(drafts))

    def _eager(self, plan: Any) -> Tensor:
        if plan.num_rows:
            self.reset()
        _, hidden = self.run(plan)
        if plan.num_rows:
            self._note(plan)
        return hidden

    def _replay(self, plan: Any, graphs: StepGraphs) -> Tensor:
        self.reset()
        step, hidden = self.run(plan, graphs)
        assert step.captured is not None and step.captured.drafts
        assert (step.captured.extend is not None) is self.drafter.extends
        self._note(plan)
        return hidden

    def _note(self, plan: Any) -> None:
        drafts = self._sampled.drafts[: plan.num_rows].cpu()
        first, states = torch.empty(0), torch.empty(0)  # a draft model keeps nothing but its cache
        if isinstance(self.drafter, Drafter):
            first, states = self.drafter._first, self.drafter._states.float().nan_to_num(9.0)
        self._found.append(_Found(drafts.clone(), first.cpu().clone(), states.cpu().clone()))

    def _written(self, plan: Any, group: int) -> Tensor:
        """A draft model computes the token before a sequence's own again."""
        places = super()._written(plan, group)
        if isinstance(self.drafter, Drafter) or self._cache.groups[group].spec.kind == "recurrent":
            return places
        for row, first in enumerate(plan.positions[plan.cu_seqlens_q[:-1]].tolist()):
            block, place = divmod(first - 1, self._cache.block_size)
            if first:
                places[plan.block_table[group][row, block], place] = True
        return places


def _largest(sizes: Sequence[GraphSize]) -> GraphSize:
    return GraphSize(*np.max([astuple(size) for size in sizes], 0).tolist())


def _slots(count: int) -> Any:
    return 2 * np.arange(count) + 3


class SynchronizingOperators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, operators whose result is a number for the host, or has a size that it must know."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.synchronizing: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().split("::")[1].split(".")[0]
        if name in {"_local_scalar_dense", "nonzero", "masked_select", "unique", "_unique2"}:
            self.synchronizing.add(name)
        if name == "index" and any(i is not None and i.dtype is torch.bool for i in args[1]):
            self.synchronizing.add("index by a mask")
        return func(*args, **(kwargs or {}))


@contextmanager
def counted_uploads(monkeypatch: pytest.MonkeyPatch, device: Any) -> Iterator[list[str]]:
    """What is copied to the device inside."""
    calls: list[str] = []
    with monkeypatch.context() as patch:
        for owner, name in ((device, "upload"), (device, "upload_all"), (StagedNumbers, "send")):
            original = getattr(owner, name)

            def counting(*arguments: Any, original: Any = original, name: str = name) -> Any:
                calls.append(name)
                return original(*arguments)

            patch.setattr(owner, name, counting)
        yield calls
