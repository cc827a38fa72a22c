# SPDX-License-Identifier: Apache-2.0
"""The rotary embedding's table, and the table of a step with positions on three axes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from rtp_llm.attention.batch import ForwardBatch
from rtp_llm.layers.layer import Layer
from rtp_llm.ops.rope.rotary_table import RopeConfig, rope_table


class Rotary(nn.Module):
    """The cosines and sines of every position, computed once for all layers of a model.

    `cos_sin` is float32 [positions, rotary_dim], cosines in the first half; None without rotation.
    """

    cos_sin: Tensor | None

    def __init__(self, config: RopeConfig, num_positions: int, device: torch.device) -> None:
        super().__init__()
        table = None
        if config.style != "none":
            table = rope_table(config, num_positions, device)
        self.register_buffer("cos_sin", table, persistent=False)


AXES = range(3)  # time, height, width


@dataclass(frozen=True)
class MropeConfig:
    """How many pairs of channels turn by the position on each axis: time, height, width.

    They lie one section after the other (Qwen2-VL) or, ``interleaved``, in turn for as long as a
    section has pairs left, with those of time in all other places (Qwen3-VL).
    """

    sections: tuple[int, int, int]
    interleaved: bool = False

    def axes(self) -> list[int]:
        """The axis of each pair."""
        if not self.interleaved:
            return [axis for axis, pairs in enumerate(self.sections) for _ in range(pairs)]
        count = len(AXES)
        return [
            pair % count if pair < count * self.sections[pair % count] else 0
            for pair in range(sum(self.sections))
        ]


class Mrope(Layer):
    """Turns positions on three axes into a table of the step, with a row for each token."""

    axes: Tensor

    def __init__(self, config: MropeConfig, device: torch.device) -> None:
        super().__init__()
        axes = config.axes()  # cosines and sines of the same pairs
        self.register_buffer("axes", torch.tensor([*axes, *axes], device=device), persistent=False)

    def forward(self, cos_sin: Tensor, batch: ForwardBatch) -> tuple[Tensor, ForwardBatch]:
        """Return float32 [T, rotary_dim] made of rows of ``cos_sin`` [positions, rotary_dim], and
        the batch with the tokens' rows there as positions."""
        assert batch.mrope_offsets is not None, "the model needs positions of three axes"
        positions = batch.positions[:, None] + batch.mrope_offsets
        table = cos_sin.gather(0, positions.index_select(1, self.axes).long())
        rows = torch.arange(len(table), dtype=torch.int32, device=table.device)
        return table, replace(batch, positions=rows)
