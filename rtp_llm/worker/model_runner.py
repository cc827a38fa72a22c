# SPDX-License-Identifier: Apache-2.0
"""Runs the model on the batch that the scheduler filled; only GPUs need a copy of its arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm.attention.batch import ForwardBatch
from rtp_llm.worker.device_step import DeviceStep
from rtp_llm.worker.graphs.shared_graphs import Ranks, SharedGraphs
from rtp_llm.worker.graphs.step_graphs import StepDrafts, StepGraphs
from rtp_llm.worker.inputs.beam_order import BeamOrder
from rtp_llm.worker.inputs.graph_sizes import GraphSize
from rtp_llm.worker.inputs.step_inputs import StepInputs, padding
from rtp_llm.worker.plan.step_plan import rows_are_tokens

if TYPE_CHECKING:
    from rtp_llm.device import Device
    from rtp_llm.models.causal_lm import CausalLM
    from rtp_llm.worker.cache.kv_cache import KVCache
    from rtp_llm.worker.graphs.capture_session import CaptureSession
    from rtp_llm.worker.kv_connector import WorkerConnector
    from rtp_llm.worker.plan.step_plan import StepPlan
    from rtp_llm.worker.sampled_tokens import SampledTokens

# The largest batch, in which all smaller ones can run, and that of one sequence, without and with
# its drafts.
_CAPTURED_AT_ONCE, _WITH_DRAFTS = 2, 3


class _Substituting:
    """A model that first looks up tokens of the previous step, inside captured graphs too."""

    def __init__(self, model: CausalLM, sampled: SampledTokens) -> None:
        self._model = model
        self._sampled = sampled

    def __call__(self, batch: ForwardBatch) -> Tensor:
        self._sampled.substitute(batch.token_ids)
        hidden: Tensor = self._model(batch)
        return hidden


class ModelRunner:
    """The model, its KV cache, and how a step passes through them.

    With ``sampled`` batches may name tokens that the host does not know yet. ``connector``
    may be set if keys and values come from or go to somewhere else, ``drafts`` if graphs find them,
    ``dense`` if layers follow pooling, ``score_tokens`` if a score is made of the logits of two
    tokens, "yes" and "no".
    """

    def __init__(
        self,
        model: CausalLM,
        cache: KVCache,
        device: Device,
        sampled: SampledTokens | None = None,
    ) -> None:
        self.model = model
        self.cache = cache
        self.device = device
        self.sampled = sampled
        self.inputs = StepInputs(model, cache, device, sampled)
        self.connector: WorkerConnector | None = None
        self.drafts: StepDrafts | None = None
        self.dense: Sequence[Callable[[Tensor], Tensor]] = ()
        self.score_tokens: tuple[int, int] | None = None
        self._layers = model if sampled is None else _Substituting(model, sampled)
        self._graphs: StepGraphs | None = None
        self._graph_states: Tensor | None = None
        self._graph_batch: ForwardBatch | None = None  # the largest one

    def begin(self, plan: StepPlan, beams: BeamOrder | None = None) -> DeviceStep:
        """Copy forked blocks, and the numbers of the plan to the device; there ``beams`` order
        the block tables."""
        for group, pairs in enumerate(plan.copy_pairs):
            if len(pairs):
                self.cache.copy_blocks(group, self.device.upload(pairs))
        hooks = None if self.connector is None else self.connector.begin_step(plan)
        if hooks is None and self._graphs is not None:  # a replayed step cannot report its layers
            captured = self._graphs.begin(plan)
            if captured is not None:
                if beams is not None:
                    assert self._graph_batch is not None
                    beams.apply(self._graph_batch, self.cache)
                return DeviceStep(plan, self.device, partial(self._graphs.batch, plan), captured)
        batch = self.inputs.upload(plan)
        if beams is not None:
            batch = self.inputs.ordered(batch, beams)
        return DeviceStep(plan, self.device, lambda: batch, hooks=hooks)

    def forward(self, step: DeviceStep, states: Tensor | None = None) -> Tensor:
        """Run all layers and return the hidden states [T, hidden] of the step's tokens.

        ``states`` [T, hidden]: the input of a pipeline stage after the first.
        """
        if step.captured is not None:
            if states is not None:
                assert self._graph_states is not None
                self._graph_states[: len(states)].copy_(states)
            return step.captured.replay(step.plan.num_tokens)
        with step.layers() as batch:
            if states is not None:
                batch = replace(batch, hidden=states)
            hidden: Tensor = self._layers(batch)
        return hidden

    def logits(self, hidden: Tensor, rows: NDArray[np.int32]) -> Tensor:
        """Logits float32 [R, columns] of the tokens ``rows`` [R] of the batch, for the part of the
        vocabulary on this rank.

        A token may have several rows, one for each of the sequences that share its prompt.
        """
        if not rows_are_tokens(rows, len(hidden)):
            hidden = hidden.index_select(0, self.device.upload(rows))
        logits: Tensor = self.model.compute_logits(hidden)
        return logits

    def warm_up(self) -> None:
        """Run a step of two tokens in the padding block, so that no request pays for first use."""
        device = self.device.torch_device
        numbers = torch.arange(2, dtype=torch.int32, device=device)
        groups, block_size = len(self.cache.groups), self.cache.block_size
        batch = ForwardBatch(
            token_ids=torch.zeros_like(numbers),
            positions=numbers,
            slot_mapping=(numbers % block_size,) * groups,
            # Blocks may have a single token.
            block_table=(torch.zeros(1, 2, dtype=torch.int32, device=device),) * groups,
            cu_seqlens_q=2 * numbers,
            seq_lens=numbers[1:] + 1,
            max_seqlen_q=2,
            max_seqlen_k=2,
            kv_cache=self.cache.layers,
            layer_group=self.cache.layer_group,
            states=self.cache.states,
            state_read=(numbers[:1] - 1,) * groups,
            state_write=(numbers[:1],) * groups,
            hidden=self.model.stage_input(2),
            **padding(self.model.inputs.needs, 2, 1, device),
        )
        with torch.inference_mode():
            self.model.warm_up(self.cache.layers)
            hidden = self._layers(batch)
            if self.model.has_logits:
                self.logits(hidden, np.arange(2, dtype=np.int32))
        self.device.synchronize()

    def capture_graphs(
        self,
        sizes: Sequence[GraphSize],
        max_model_len: int,
        block_size: int,
        ranks: Ranks | None = None,
        session: CaptureSession | None = None,
    ) -> StepGraphs:
        """Let steps run as graphs from now on; the first sizes are captured at once.

        The others follow in `work_idle`, or when a batch needs one. With ``ranks``, all of which do
        this at the same time, they follow as described in SharedGraphs. ``session`` belongs to
        ranks that compute each step together.
        """
        most = GraphSize(*(max(numbers) for numbers in zip(*map(astuple, sizes), strict=True)))
        slot = 0 if self.drafts is None else self.drafts.padding_slot
        self._graph_states = self.model.stage_input(most.tokens)
        sizes_held = most, max_model_len, block_size
        inputs = self.inputs.for_graphs(*sizes_held, slot, self._graph_states)
        self._graph_batch = inputs.whole
        if ranks is None:
            self._graphs = StepGraphs(
                self._layers, inputs, self.device, sizes, session=session, drafts=self.drafts
            )
        else:
            self._graphs = SharedGraphs(self._layers, inputs, self.device, sizes, ranks)
        for _ in range(_CAPTURED_AT_ONCE if self.drafts is None else _WITH_DRAFTS):
            self.work_idle()
        return self._graphs

    @property
    def has_idle_work(self) -> bool:
        """Whether there are graphs left to capture."""
        return self._graphs is not None and not self._graphs.complete

    def work_idle(self) -> None:
        """Capture one graph, if there is one left; for when no request runs."""
        if self._graphs is not None:
            with torch.inference_mode():
                self._graphs.capture_next()
