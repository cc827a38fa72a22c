# SPDX-License-Identifier: Apache-2.0
"""A step with its numbers on the device, where the drafter and the model's layers read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

    from rtp_llm.attention.batch import ForwardBatch
    from rtp_llm.device import Device
    from rtp_llm.worker.graphs.step_graphs import Captured
    from rtp_llm.worker.layer_hooks import LayerHooks
    from rtp_llm.worker.plan.step_plan import StepPlan


@dataclass(frozen=True)
class DeviceStep:
    """``plan`` between `ModelRunner.begin` and the next one.

    ``captured`` is the graph that computes it on numbers that are already written; None: it runs
    eagerly. ``hooks`` are entered around its layers, which call them: see WorkerConnector.
    """

    plan: StepPlan
    device: Device
    make_batch: Callable[[], ForwardBatch]
    captured: Captured | None = None
    hooks: AbstractContextManager[LayerHooks] | None = None

    @cached_property
    def batch(self) -> ForwardBatch:
        """Its tokens and sequences, without padding. Once its layers have run, `token_ids` has no
        names left, only tokens."""
        return self.make_batch()

    @cached_property
    def cu_rows(self) -> Tensor:
        """The plan's row_cu, int32 [O + 1]. Must be read before the plan changes."""
        plan = self.plan
        if np.array_equal(plan.row_cu, plan.cu_seqlens_q):  # no sequence computes its prompt
            return self.batch.cu_seqlens_q
        return self.device.upload(plan.row_cu)

    @contextmanager
    def layers(self) -> Iterator[ForwardBatch]:
        """The batch for layers that write to the cache, with ``hooks``: first the layers of the
        model, then those of the drafter."""
        if self.hooks is None:
            yield self.batch
        else:
            with self.hooks as hooks:
                yield replace(
                    self.batch,
                    before_layer=hooks.wait_for_layer_load,
                    on_written=hooks.save_kv_layer,
                )
