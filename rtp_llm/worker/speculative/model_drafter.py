"""Drafts of a draft model, which goes on from tokens and needs nothing of the model's."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rtp_llm.worker.speculative.device_drafter import DeviceDrafter
from rtp_llm.worker.speculative.drafter import DraftSteps, Windows

if TYPE_CHECKING:
    from rtp_llm.worker.model_runner import ModelRunner
    from rtp_llm.worker.plan import StepPlan
    from rtp_llm.worker.sampled_tokens import SampledTokens


class ModelDrafter(DeviceDrafter):
    """A step goes through it twice, as through a Drafter.

    `draft` comes before the model's layers: from the last token of each sequence the draft model
    decodes as many tokens as the plan has drafts. `extend` comes behind the sampling: the draft
    model computes all tokens of the step, so that it has keys and values wherever the model has
    some: of prompts, and of accepted drafts, of which it never computed the last one.

    A token is at its own position in both models. To compute the next one along with those of its
    step, as draft heads do, would take a slot that the sequence may not have yet, or move all
    tokens by a position and lose the first; so it waits for the next step, at the price of one
    token for each sequence there. Nothing is kept between steps but the cache.
    """

    def __init__(self, runner: ModelRunner, sampled: SampledTokens) -> None:
        assert runner.model.drafts is not None, "the model was loaded without a draft model"
        self._runner, self._sampled, self._model = runner, sampled, runner.model.drafts
        self._ids: Tensor | None = None

    def draft(self, plan: StepPlan) -> None:
        """Find the drafts of the step that is about to be computed."""
        windows = Windows.of(plan)
        if windows is not None:
            self._find(plan, windows)
        # Now: what the step samples will take the place of the tokens that it names.
        self._ids = self._runner.device.upload(plan.token_ids)
        self._sampled.substitute(self._ids)

    def extend(self, plan: StepPlan, hidden: Tensor) -> None:
        """``hidden`` [T, hidden] of the step's tokens is the model's own business."""
        assert self._ids is not None
        runner = self._runner
        batch = replace(runner.forward_batch(plan), token_ids=self._ids)
        runner.model.draft(batch, runner.model.draft_states(hidden))

    def _find(self, plan: StepPlan, windows: Windows) -> None:
        steps = DraftSteps(self._runner, plan, windows, self._sampled.correction, found=0)
        token = self._runner.device.upload(plan.token_ids[windows.tokens])
        self._sampled.substitute(token)
        nothing = token.new_empty(len(token), 0)
        tokens = []
        for batch in steps.batches():
            states = self._runner.model.draft(replace(batch, token_ids=token), nothing)
            token = self._model.tokens(self._model.logits(states).argmax(1)).int()
            tokens.append(token)
        source, target = steps.upload(windows.source), steps.upload(windows.rows)
        found = torch.stack(tokens).flatten().index_select(0, source)
        self._sampled.drafts.index_copy_(0, target, found)
