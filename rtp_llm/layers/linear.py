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
from rtp_llm.layers.cut_targets import WHOLE, LinearCuts
from rtp_llm.layers.fp8_targets import NamedTargets, float_targets
from rtp_llm.layers.interleaved import Interleaved, check_blocks, interleave, tensors_of
from rtp_llm.layers.layer import Layer
from rtp_llm.layers.norm import RMSNorm
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights import Elsewhere, RowsTarget, WeightTarget
from rtp_llm.ops.fp8.fp8_blocks import BLOCK


class Linear(Layer):
    """x @ weight.T + bias; `parts` maps names in the checkpoint to their number of rows, in order.

    The names stand beside each other in the checkpoint: the fused qkv_proj of a layer has the parts
    q_proj, k_proj and v_proj, and takes `....self_attn.q_proj.weight` and so on. Parts that one
    tensor holds group by group are named in `interleaved`, and that tensor is taken. Columns and
    parts are those of this rank, `cuts` say which of the checkpoint's these are; where the columns
    are a part, so are the results, of a sum over the ranks.
    SharedBlocksError where FP8 blocks of such a tensor would belong to several parts, DivisionError
    where they would belong to several ranks.
    """

    # Rows of a part that belong together while its weight is loaded.
    block_rows: ClassVar[int] = 1
    bias: nn.Parameter | None

    def __init__(
        self,
        columns: int,
        parts: Mapping[str, int],
        bias: bool,
        options: LayerOptions,
        interleaved: Sequence[Interleaved] = (),
        cuts: LinearCuts = WHOLE,
    ) -> None:
        super().__init__()
        self.parts = dict(parts)
        self.columns = columns
        self.rows = sum(parts.values())
        self._tensors = tensors_of(parts, interleaved)
        self.stored_as_fp8: dict[str, bool] = {}
        for name, tensor in self._tensors.items():
            stored = options.stored_as_fp8(name)
            check_blocks(tensor, parts, BLOCK if stored else self.block_rows)
            if stored or self.block_rows > 1:
                cuts.check_blocks(options.path + name, tensor.parts, stored)
            self.stored_as_fp8.update(dict.fromkeys(tensor.parts, stored))
        self._cuts, self._stores_bias = cuts, bias
        self.bias = options.parameter(self.rows) if bias and cuts.adds_bias else None
        self.make_weight(options)

    @abstractmethod
    def make_weight(self, options: LayerOptions) -> None:
        """The parameters of the parts' weights; the last of what is made."""

    def checkpoint_targets(self, path: str) -> Iterator[tuple[str, WeightTarget]]:
        beside = path.rstrip(".").rpartition(".")[0]
        prefix = f"{beside}." if beside else ""
        starts = dict(zip(self.parts, accumulate(self.parts.values(), initial=0), strict=False))
        for name, tensor in self._tensors.items():
            targets = [self._targets_of(part, starts[part]) for part in tensor.parts]
            for ends in zip(*targets, strict=True):
                target = interleave([target for _, target in ends], tensor.groups)
                end = ends[0][0]
                yield f"{prefix}{name}.{end}", self._cuts.apply(end, tensor.parts, target)

    def _targets_of(self, part: str, first: int) -> NamedTargets:
        yield from self.part_targets(part, first)
        if self.bias is not None:
            yield "bias", RowsTarget(self.bias, first, self.parts[part])
        elif self._stores_bias:
            yield "bias", Elsewhere((self.parts[part],))

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor | None:
        """What the caller has to add to `residual` [T, rows] for this layer of x [T, columns].

        None: the layer has added it in place.
        """
        return self.forward(x)  # type: ignore[no-any-return]

    def normed(self, norm: RMSNorm, residual: Tensor, pending: Tensor | None) -> Tensor:
        """The layer of norm(residual) [T, columns], after `pending` was added to it in place."""
        return self.forward(norm.after(pending, residual))  # type: ignore[no-any-return]

    def normed_gated(
        self, norm: RMSNorm, residual: Tensor, pending: Tensor | None, activation: GatedActivation
    ) -> Tensor:
        """activation of the first half of normed(...) times its second half: [T, rows / 2]."""
        return activation(self.normed(norm, residual, pending))

    def takes_gate(self, activation: GatedActivation) -> bool:
        """Whether add_gated does better with `activation` than add_to of what it gives."""
        return False

    def add_gated(
        self, residual: Tensor, pairs: Tensor, activation: GatedActivation
    ) -> Tensor | None:
        """add_to of activation(pairs), of which a row has two halves."""
        return self.add_to(residual, activation(pairs))

    def float_product(self, x: Tensor) -> Tensor:
        """The layer of x [T, columns] in float32: [T, rows]."""
        return self.forward(x).float()  # type: ignore[no-any-return]

    @abstractmethod
    def part_targets(self, name: str, first: int) -> NamedTargets:
        """(end of the name, target) for the weight of part `name`, whose rows start at `first`."""


class PlainLinear(Linear):
    """Weight [rows, columns] in the type of the activations."""

    def make_weight(self, options: LayerOptions) -> None:
        self.weight = options.parameter(self.rows, self.columns)

    def forward(self, x: Tensor) -> Tensor:
        return ops.linear(x, self.weight, self.bias)

    def part_targets(self, name: str, first: int) -> NamedTargets:
        rows = self.weight.detach().narrow(0, first, self.parts[name])
        yield from float_targets(rows, self.stored_as_fp8[name])


def plain_float_product(x: Tensor, weight: Tensor) -> Tensor:
    """x @ weight.T in float32, after rounding to x's dtype."""
    return ops.linear(x, weight).float()
