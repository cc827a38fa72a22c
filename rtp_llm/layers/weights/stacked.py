# SPDX-License-Identifier: Apache-2.0
"""The weights of many linear layers of one shape, such as a block's experts, in one tensor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from torch import nn

from rtp_llm.device.choice import load_class
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.fp8_layouts import Fp8Layout
from rtp_llm.layers.weights.stored_format import NamedTargets, StoredFormat
from rtp_llm.layers.weights.targets import NotLocal, WeightTarget

PLAIN = "plain"
# Formats of weights in memory, besides the plain one in the dtype of activations: those of stored
# weights that some executor takes as they are.
_LAYOUTS = {
    "fp8": "rtp_llm.layers.weights.fp8_layouts:Fp8Blocks",
    "fp8_channel": "rtp_llm.layers.weights.fp8_layouts:Fp8Channels",
}


class StackedLinearWeights(nn.Module):
    """weight [slots, rows, columns]: for each slot, the rows of all `parts` concatenated.

    `local` is the expert of each slot (None: all `experts` in order); an expert may occur twice.
    Names in the checkpoint are "EXPERT.PART.weight", siblings of this module's own name
    (`options.path`); experts without a slot are not read. The format "plain" has no scale (None),
    "fp8" is that of Fp8Blocks, "fp8_channel" that of Fp8Channels; see weight_format.
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
        self.scale = self._layout = None
        layout = _LAYOUTS.get(weight_format(options, parts))
        if layout is None:
            self.weight = options.parameter(len(self.local), sum(parts.values()), columns)
        else:
            self._layout = _load_layout(layout)(parts, columns)
            self.weight, self.scale = self._layout.make(options, len(self.local))

    def checkpoint_targets(self, path: str) -> Iterator[tuple[str, WeightTarget]]:
        parent = path.rstrip(".").rpartition(".")[0]
        for slot, expert in enumerate(self.local):
            first = 0
            for name, rows in self.parts.items():
                for suffix, target in self._part_targets(slot, name, first, rows):
                    yield f"{parent}.{expert}.{name}.{suffix}", target
                first += rows
        for expert in sorted(set(range(self.experts)) - set(self.local)):
            for name, rows in self.parts.items():
                shapes = self._format_of(expert, name).shapes(rows, self.columns)
                for suffix, shape in shapes.items():
                    yield f"{parent}.{expert}.{name}.{suffix}", NotLocal(shape)

    def _part_targets(self, slot: int, name: str, first: int, rows: int) -> NamedTargets:
        stored, weight = self._format_of(self.local[slot], name), self.weight.detach()[slot]
        if self._layout is None or self.scale is None:
            yield from stored.float_targets(weight.narrow(0, first, rows))
        else:
            yield from self._layout.targets(weight, self.scale[slot], name, stored)

    def _format_of(self, expert: int, name: str) -> StoredFormat:
        return self._options.inside(str(expert)).format_of(name)


def weight_format(options: LayerOptions, parts: Iterable[str]) -> str:
    """How StackedLinearWeights keeps `parts`: "plain", "fp8", "fp8_channel" or a quantisation.

    The stored format of the first expert decides for all; a part in another one is quantised or
    dequantised while loading.
    """
    first = options.inside("0")
    stored = {first.format_of(part).name for part in parts}
    if options.multiplies_fp8 and options.quantization in ("none", "fp8"):
        for name, place in _LAYOUTS.items():
            if stored <= _load_layout(place).formats:
                return name
    return PLAIN if options.quantization == "none" else options.quantization


def _load_layout(place: str) -> type[Fp8Layout]:
    layout: type[Fp8Layout] = load_class(place)
    return layout
