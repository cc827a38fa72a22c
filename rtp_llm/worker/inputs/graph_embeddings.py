# SPDX-License-Identifier: Apache-2.0
"""Embeddings where graphs read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rtp_llm.attention.embeddings import MaskedEmbeddings
from rtp_llm.attention.model_inputs import InputNeeds

if TYPE_CHECKING:
    from rtp_llm.device import Device
    from rtp_llm.worker.inputs.embedding_store import EmbeddingStore
    from rtp_llm.worker.plan.step_plan import StepPlan


class GraphEmbeddings:
    """Memory for the embeddings of a step's placeholders; steps without any write nothing."""

    def __init__(
        self, store: EmbeddingStore, needs: InputNeeds, tokens: int, device: Device
    ) -> None:
        """Make room for steps of up to ``tokens``; ``store`` keeps what they take."""
        self._store, self._device, self._dtype = store, device, needs.embedding_dtype
        place, width = device.torch_device, needs.embedding_width
        rows = torch.zeros(tokens, width, dtype=self._dtype, device=place)
        self.on_device = MaskedEmbeddings(
            rows, torch.zeros(tokens, 1, dtype=torch.bool, device=place)
        )
        self._is_clear = True

    def clear(self) -> None:
        """No token is a placeholder."""
        if not self._is_clear:
            self.on_device.mask.zero_()
            self._is_clear = True

    def write(self, plan: StepPlan) -> None:
        """Write what a step needs, without waiting for the device."""
        self.clear()
        found = self._store.rows_of(plan)
        if found is None:
            return
        raw, places = self._device.upload_all(found.raw, found.places)
        self.on_device.rows.index_copy_(0, places, raw.view(self._dtype))
        self.on_device.mask.index_fill_(0, places, True)
        self._is_clear = False
