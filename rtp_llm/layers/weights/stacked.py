# SPDX-License-Identifier: Apache-2.0
"""The weights of many linear layers of one shape, such as a block's experts, in one tensor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from torch import nn

from rtp_llm.device.choice import load_class
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.interleaved import (
    Interleaved,
    TransposedTarget,
    interleave,
    tensors_of,
)
from rtp_llm.layers.weights.layout import WeightLayout, rows_of
from rtp_llm.layers.weights.stored_format import (
    BIAS_NAME,
    FLOAT,
    WEIGHT_NAME,
    NamedTargets,
    StoredFormat,
)
from rtp_llm.layers.weights.targets import NotLocal, RowsTarget, WeightTarget

PLAIN = "plain"
# Formats of weights in memory, besides the plain one in the dtype of activations: those of stored
# weights that some executor takes as they are.
_LAYOUTS = {
    "fp8": "rtp_llm.layers.weights.fp8_layouts:Fp8Blocks",
    "fp8_channel": "rtp_llm.layers.weights.fp8_layouts:Fp8Channels",
    "int_groups": "rtp_llm.layers.weights.int_layout:IntGroupWeights",
    "int8_channel": "rtp_llm.layers.weights.int8_layout:Int8Experts",
    "mxfp4": "rtp_llm.layers.weights.mxfp4_layout:Mxfp4Blocks",
    "mxfp4_packed": "rtp_llm.layers.weights.mxfp4_layout:PackedMxfp4Blocks",
    "table4": "rtp_llm.layers.weights.table4_layout:Table4Experts",
    "gguf": "rtp_llm.layers.weights.gguf_layout:GgufExperts",
}


@dataclass(frozen=True)
class StoredExperts:
    """Which tensors of an expert a checkpoint has, besides one for each part.

    Those of `interleaved` hold the rows of several parts; `transposed` floats are [columns, rows],
    the rows of all parts alternating; `bias`: there is a bias of each part.
    """

    interleaved: tuple[Interleaved, ...] = ()
    transposed: bool = False
    bias: bool = False


PART_BY_PART = StoredExperts()


class StackedLinearWeights(nn.Module):
    """weight [slots, rows, columns]: for each slot, the rows of all `parts` concatenated.

    `local` is the expert of each slot (None: all `experts` in order); an expert may occur twice.
    Names in the checkpoint are "EXPERT.PART.weight", siblings of this module's own name
    (`options.path`); experts without a slot are not read. The format "plain" has no scale (None),
    others are those of _LAYOUTS; `kept` is that of all weights of a block, see weight_format. bias
    [slots, rows], or None.
    """

    scale: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        columns: int,
        parts: Mapping[str, int],
        experts: int,
        options: LayerOptions,
        local: tuple[int, ...] | None = None,
        stored: StoredExperts = PART_BY_PART,
        kept: str = "",
    ) -> None:
        super().__init__()
        self.parts, self.columns, self.experts = dict(parts), columns, experts
        self._stored = stored
        used = [each for each in stored.interleaved if parts.keys() >= set(each.parts)]
        self._tensors = tensors_of(parts, used)
        local = tuple(range(experts)) if local is None else local
        # A plan needs no slots: the shapes are the same as for experts on other ranks.
        self.local = () if options.planned else local
        self._options = options
        self.scale = self.layout = self.bias = None
        layout = _LAYOUTS.get(kept or weight_format(options, self._tensors))
        if layout is None:
            self.weight = options.parameter(len(self.local), sum(parts.values()), columns)
        else:
            formats = _formats_of_first(options, self._tensors)
            self.layout = _load_layout(layout)(parts, columns, formats)
            self.weight, self.scale = self.layout.make(options, len(self.local))
        if stored.bias:
            self.bias = options.parameter(len(self.local), sum(parts.values()))

    def checkpoint_targets(self, path: str) -> Iterator[tuple[str, WeightTarget]]:
        parent = path.rstrip(".").rpartition(".")[0]
        for slot, expert in enumerate(self.local):
            for name, tensor in self._tensors.items():
                for suffix, target in self._targets(slot, tensor):
                    yield f"{parent}.{expert}.{name}.{suffix}", target
        for expert in sorted(set(range(self.experts)) - set(self.local)):
            for name, tensor in self._tensors.items():
                for suffix, shape in self._shapes(expert, tensor).items():
                    yield f"{parent}.{expert}.{name}.{suffix}", NotLocal(shape)

    def _targets(self, slot: int, tensor: Interleaved) -> NamedTargets:
        """(name suffix, target) pairs of an expert's tensor, which holds one part or several."""
        stored = self._format_of(self.local[slot], tensor.tensor)
        if self._stored.transposed and stored is FLOAT:
            weight = self.weight.detach()[slot]
            yield (
                WEIGHT_NAME,
                TransposedTarget([rows_of(weight, self.parts, each) for each in tensor.parts]),
            )
        else:
            parts = [self._part_targets(slot, each, stored) for each in tensor.parts]
            for same in zip(*parts, strict=True):
                suffix = same[0][0]
                target = stored.interleave(suffix, [each for _, each in same], tensor.groups)
                yield suffix, stored.placed(suffix, target, None, None)
        if self.bias is not None:
            bias = self.bias.detach()[slot]
            rows = [RowsTarget(rows_of(bias, self.parts, each)) for each in tensor.parts]
            yield BIAS_NAME, interleave(rows, tensor.groups)

    def _part_targets(self, slot: int, name: str, stored: StoredFormat) -> NamedTargets:
        weight = self.weight.detach()[slot]
        if self.layout is None or self.scale is None:
            yield from stored.float_targets(rows_of(weight, self.parts, name))
        else:
            yield from self.layout.targets(weight, self.scale[slot], name, stored)

    def _shapes(self, expert: int, tensor: Interleaved) -> dict[str, tuple[int, ...]]:
        """The shapes of the tensors of an expert that has no slot, by the ends of their names."""
        stored = self._format_of(expert, tensor.tensor)
        rows = sum(self.parts[each] for each in tensor.parts)
        shapes = stored.shapes(rows, self.columns)
        if self._stored.transposed and stored is FLOAT:
            shapes = {WEIGHT_NAME: (self.columns, rows)}
        return {**shapes, BIAS_NAME: (rows,)} if self._stored.bias else shapes

    def _format_of(self, expert: int, name: str) -> StoredFormat:
        return self._options.inside(str(expert)).format_of(name)


def weight_format(options: LayerOptions, parts: Iterable[str]) -> str:
    """How StackedLinearWeights keeps `parts`: "plain", a name of _LAYOUTS, or a quantisation.

    The stored format of the first expert decides for all; a part in another one is quantised or
    dequantised while loading.
    """
    formats = _formats_of_first(options, parts)
    stored = {each.name for each in formats}
    for name, place in _LAYOUTS.items():
        layout = _load_layout(place)
        if stored <= layout.formats and layout.takes(options) and layout.fits(formats):
            return name
    return PLAIN if options.quantization == "none" else options.quantization


def _formats_of_first(options: LayerOptions, parts: Iterable[str]) -> list[StoredFormat]:
    first = options.inside("0")
    return [first.format_of(part) for part in parts]


def _load_layout(place: str) -> type[WeightLayout]:
    layout: type[WeightLayout] = load_class(place)
    return layout
