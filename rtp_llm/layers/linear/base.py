# SPDX-License-Identifier: Apache-2.0
"""Linear layers, plain or quantised, whose rows may come from several tensors of the checkpoint."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import ClassVar

from torch import Tensor, nn

from rtp_llm import ops
from rtp_llm.layers.activation import GatedActivation
from rtp_llm.layers.layer import Layer
from rtp_llm.layers.norm import RMSNorm
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.interleaved import Interleaved, check_blocks, tensors_of
from rtp_llm.layers.weights.shard_targets import WHOLE, LinearShards
from rtp_llm.layers.weights.stored_format import NamedTargets, StoredFormat
from rtp_llm.layers.weights.targets import NotLocal, RowsTarget, WeightTarget


class Linear(Layer):
    """x @ weight.T + bias; `parts` maps names in the checkpoint to their number of rows, in order.

    The parts are siblings in the checkpoint: a layer's fused qkv_proj has the parts q_proj, k_proj
    and v_proj, and loads `....self_attn.q_proj.weight` and so on. `interleaved` names tensors that
    hold several parts group by group; they are loaded in place of those parts. Columns and parts
    are those of this rank, and `shards` says which slices of the checkpoint they are. If the
    columns are sharded, each rank's result is a partial sum.
    Raises SharedBlocksError if FP8 blocks of an interleaved tensor would belong to several parts,
    and DivisionError if they would belong to several ranks.
    """

    # Number of rows of a part that must be loaded together.
    block_rows: ClassVar[int] = 1
    bias: nn.Parameter | None

    def __init__(
        self,
        columns: int,
        parts: Mapping[str, int],
        bias: bool,
        options: LayerOptions,
        interleaved: Sequence[Interleaved] = (),
        shards: LinearShards = WHOLE,
    ) -> None:
        super().__init__()
        self.parts = dict(parts)
        self.columns = columns
        self.rows = sum(parts.values())
        self._tensors = tensors_of(parts, interleaved)
        self.formats: dict[str, StoredFormat] = {}
        for name, tensor in self._tensors.items():
            stored = options.format_of(name)
            check_blocks(tensor, parts, max(stored.row_block, self.block_rows))
            shards.check_blocks(options.path + name, tensor.parts, stored, self.block_rows)
            self.formats.update(dict.fromkeys(tensor.parts, stored))
        self._shards, self._stores_bias = shards, bias
        self.bias = options.parameter(self.rows) if bias and shards.adds_bias else None
        self.make_weight(options)

    @abstractmethod
    def make_weight(self, options: LayerOptions) -> None:
        """Create the weight parameters of the parts; called last in the constructor."""

    def checkpoint_targets(self, path: str) -> Iterator[tuple[str, WeightTarget]]:
        parent = path.rstrip(".").rpartition(".")[0]
        prefix = f"{parent}." if parent else ""
        starts = dict(zip(self.parts, accumulate(self.parts.values(), initial=0), strict=False))
        for name, tensor in self._tensors.items():
            stored = self.formats[tensor.parts[0]]
            targets = [self._targets_of(part, starts[part]) for part in tensor.parts]
            for named in zip(*targets, strict=True):
                suffix = named[0][0]
                target = stored.interleave(suffix, [each for _, each in named], tensor.groups)
                target = self._shards.apply(suffix, tensor.parts, target, stored)
                yield f"{prefix}{name}.{suffix}", target

    def _targets_of(self, part: str, first: int) -> NamedTargets:
        yield from self.part_targets(part, first)
        if self.bias is not None:
            yield "bias", RowsTarget(self.bias, first, self.parts[part])
        elif self._stores_bias:
            yield "bias", NotLocal((self.parts[part],))

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor | None:
        """Return this layer's output for x [T, columns], to be added to `residual` [T, rows].

        Returns None if it was already added to `residual` in place.
        """
        return self.forward(x)  # type: ignore[no-any-return]

    def normed(self, norm: RMSNorm, residual: Tensor, pending: Tensor | None) -> Tensor:
        """Add `pending` to `residual` [T, columns] in place, then apply the layer to its norm."""
        return self.forward(norm.after(pending, residual))  # type: ignore[no-any-return]

    def of_sum(self, norm: RMSNorm | None, residual: Tensor, pending: Tensor | None) -> Tensor:
        """`normed`, or without a norm the layer of the sum itself."""
        if norm is not None:
            return self.normed(norm, residual, pending)
        if pending is not None:
            residual.add_(pending)
        return self.forward(residual)  # type: ignore[no-any-return]

    def normed_gated(
        self, norm: RMSNorm, residual: Tensor, pending: Tensor | None, activation: GatedActivation
    ) -> Tensor:
        """activation(first half of normed(...)) * second half: [T, rows / 2]."""
        return activation(self.normed(norm, residual, pending))

    def takes_gate(self, activation: GatedActivation) -> bool:
        """Whether add_gated is faster than applying `activation` and then add_to."""
        return False

    def add_gated(
        self, residual: Tensor, pairs: Tensor, activation: GatedActivation
    ) -> Tensor | None:
        """add_to of activation(pairs); each row of `pairs` holds two halves, gate and up."""
        return self.add_to(residual, activation(pairs))

    def gelu(self, x: Tensor) -> Tensor:
        """Apply the layer to x [T, columns], and the exact GELU to the result."""
        return ops.gelu(self.forward(x), False)

    def float_product(self, x: Tensor) -> Tensor:
        """Apply the layer to x [T, columns] -> float32 [T, rows]."""
        return self.forward(x).float()  # type: ignore[no-any-return]

    @abstractmethod
    def part_targets(self, name: str, first: int) -> NamedTargets:
        """(name suffix, target) pairs for the weight of part `name`, which begins at `first`."""


class PlainLinear(Linear):
    """A weight [rows, columns] in the dtype of the activations."""

    def make_weight(self, options: LayerOptions) -> None:
        self.weight = options.parameter(self.rows, self.columns, lasting=True)

    def forward(self, x: Tensor) -> Tensor:
        return ops.linear(x, self.weight, self.bias)

    def part_targets(self, name: str, first: int) -> NamedTargets:
        rows = self.weight.detach().narrow(0, first, self.parts[name])
        yield from self.formats[name].float_targets(rows)


def plain_float_product(x: Tensor, weight: Tensor) -> Tensor:
    """x @ weight.T in float32, after rounding to x's dtype."""
    return ops.linear(x, weight).float()
