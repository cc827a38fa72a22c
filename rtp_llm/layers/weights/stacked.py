# SPDX-License-Identifier: Apache-2.0
"""The weights of many linear layers of one shape, such as a block's experts, in one tensor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import nn

from rtp_llm.layers.linear.factory import multiplies_fp8
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.fp8_targets import NamedTargets, float_targets, fp8_targets
from rtp_llm.layers.weights.targets import NotLocal, WeightTarget
from rtp_llm.ops.fp8.fp8_blocks import BLOCK, E4M3, num_blocks
from rtp_llm.quantization.fp8 import SCALE_NAME, WEIGHT_NAME, BlockRows, padded


class StackedLinearWeights(nn.Module):
    """weight [slots, rows, columns]: for each slot, the rows of all `parts` concatenated.

    `local` is the expert of each slot (None: all `experts` in order); an expert may occur twice.
    Names in the checkpoint are "EXPERT.PART.weight", siblings of this module's own name
    (`options.path`); experts without a slot are not read. In the form "fp8" the weight is e4m3 and
    `scale` is float32 [slots, rows / 128, columns / 128]; each part begins at a block boundary and
    is padded with zeros to whole blocks (see BlockRows). In the form "plain" scale is None.
    """

    scale: nn.Parameter | None

    def __init__(
        self,
        columns: int,
        parts: Mapping[str, int],
        experts: int,
        options: LayerOptions,
        local: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__()
        self.parts, self.columns, self.experts = dict(parts), columns, experts
        local = tuple(range(experts)) if local is None else local
        # A plan needs no slots: the shapes are the same as for experts on other ranks.
        self.local = () if options.planned else local
        self._options = options
        self.scale = None
        if weight_format(options, parts) == "fp8":
            self._make_blocks(BlockRows(tuple(parts.values())).total, padded(columns))
        else:
            self.weight = options.parameter(len(self.local), sum(parts.values()), columns)

    def checkpoint_targets(self, path: str) -> Iterator[tuple[str, WeightTarget]]:
        parent = path.rstrip(".").rpartition(".")[0]
        for slot, expert in enumerate(self.local):
            for name, end, target in self._slot_targets(slot, expert):
                yield f"{parent}.{expert}.{name}.{end}", target
        for expert in sorted(set(range(self.experts)) - set(self.local)):
            for name, end, shape in self._shapes(expert):
                yield f"{parent}.{expert}.{name}.{end}", NotLocal(shape)

    def _make_blocks(self, rows: int, columns: int) -> None:
        slots, options = len(self.local), self._options
        self.weight = options.parameter(slots, rows, columns, dtype=E4M3)
        if (rows, columns) != (sum(self.parts.values()), self.columns):
            self.weight.data.view(torch.uint8).zero_()
        self.scale = options.parameter(slots, rows // BLOCK, columns // BLOCK, dtype=torch.float32)

    def _slot_targets(self, slot: int, expert: int) -> Iterator[tuple[str, str, WeightTarget]]:
        """(part, name suffix, target) of every tensor that is loaded into `slot`."""
        first = 0
        for name, rows in self.parts.items():
            stored = self._stored_as_fp8(expert, name)
            for end, target in self._rows_targets(slot, first, rows, stored):
                yield name, end, target
            first += rows if self.scale is None else padded(rows)

    def _rows_targets(self, slot: int, first: int, rows: int, stored: bool) -> NamedTargets:
        weight = self.weight.detach()[slot].narrow(0, first, rows).narrow(1, 0, self.columns)
        if self.scale is None:
            yield from float_targets(weight, stored)
            return
        scale = self.scale.detach()[slot].narrow(0, first // BLOCK, num_blocks(rows))
        yield from fp8_targets(weight, scale, stored)

    def _shapes(self, expert: int) -> Iterator[tuple[str, str, tuple[int, ...]]]:
        """(part, name suffix, shape) of every tensor of `expert` in the checkpoint."""
        for name, rows in self.parts.items():
            yield name, WEIGHT_NAME, (rows, self.columns)
            if self._stored_as_fp8(expert, name):
                yield name, SCALE_NAME, (num_blocks(rows), num_blocks(self.columns))

    def _stored_as_fp8(self, expert: int, name: str) -> bool:
        return self._options.inside(str(expert)).stored_as_fp8(name)


def weight_format(options: LayerOptions, parts: Iterable[str]) -> str:
    """How StackedLinearWeights keeps `parts`: "plain", "fp8" or the name of another quantisation.

    The form of the first expert in the checkpoint decides for all; a part that the checkpoint
    stores in a different form is quantised or dequantised while loading.
    """
    if options.quantization != "none":
        return options.quantization
    first = options.inside("0")
    stored = all(first.stored_as_fp8(part) for part in parts)
    return "fp8" if stored and multiplies_fp8(options) else "plain"
