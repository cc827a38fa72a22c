# SPDX-License-Identifier: Apache-2.0
"""Drafts on the device that a test decides on, without the host's knowing them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm.worker.speculative.device_drafter import DeviceDrafter

if TYPE_CHECKING:
    from rtp_llm.testing.engine.tiny_engine import TinyEngine
    from rtp_llm.worker.device_step import DeviceStep
    from rtp_llm.worker.plan.step_plan import StepPlan
    from rtp_llm.worker.sampled_tokens import SampledTokens

Choose = Callable[[np.random.Generator, int], NDArray[np.bool_]]


def all_right(random: np.random.Generator, count: int) -> NDArray[np.bool_]:
    return np.ones(count, np.bool_)


def all_wrong(random: np.random.Generator, count: int) -> NDArray[np.bool_]:
    return np.zeros(count, np.bool_)


def some_right(random: np.random.Generator, count: int) -> NDArray[np.bool_]:
    return random.random(count) < 0.7


def true_steps(plan: StepPlan, sampled: SampledTokens) -> NDArray[np.int64]:
    """``plan.row_steps`` [R], corrected, in the host's memory."""
    if sampled.correction is None:
        return plan.row_steps
    correction = sampled.correction
    shorter: NDArray[np.int32] = correction.rejected.numpy()[correction.of_row]
    return plan.row_steps - shorter


class ScriptedDrafter(DeviceDrafter):
    """Stands in for a Drafter: ``script`` has the whole output of each sequence, by its id."""

    def __init__(self, engine: TinyEngine, script: Mapping[int, list[int]], choose: Choose) -> None:
        """Drafts of ``engine``, which has been built with a draft head, come from here now."""
        worker = engine.built.worker
        assert worker.drafter is not None and worker.runner.sampled is not None
        self.assumed = self.corrected = 0  # sequences of plans, those of a wrong length among them
        self._sampled = worker.runner.sampled
        self._script, self._choose = script, choose
        self._random = np.random.default_rng(5)
        worker.drafter = self

    def draft(self, step: DeviceStep) -> None:
        plan = step.plan
        steps = true_steps(plan, self._sampled)
        if (correction := self._sampled.correction) is not None:
            self.assumed += len(correction.of_sequence)
            shorter = correction.rejected.numpy()[correction.of_sequence]
            self.corrected += int((shorter > 0).sum())
        for first, end in pairwise(plan.row_cu.tolist()):
            if end - first > 1:
                drafts = self._drafts(int(plan.row_ids[first]), int(steps[first]), end - first - 1)
                self._sampled.drafts[first : end - 1] = torch.from_numpy(drafts)

    def extend(self, step: DeviceStep, hidden: Tensor) -> None:
        return

    def _drafts(self, sequence: int, begin: int, count: int) -> NDArray[np.int32]:
        following = np.zeros(count, np.int32)  # there are no right ones after its end
        said = self._script[sequence][begin : begin + count]
        following[: len(said)] = said
        wrong = np.where(following > 0, following - 1, 1).astype(np.int32)
        return np.where(self._choose(self._random, count), following, wrong)
