"""Linear layers, plain or quantised, whose rows may come from several tensors of the checkpoint."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from rtp_llm import ops
from rtp_llm.layers.activation import GatedActivation
from rtp_llm.layers.fp8_targets import NamedTargets, float_targets
from rtp_llm.layers.layer import Layer
from rtp_llm.layers.norm import RMSNorm
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights import RowsTarget, WeightTarget


class Linear(Layer):
    """x @ weight.T + bias; `parts` maps names in the checkpoint to their number of rows, in order.

    The names stand beside each other in the checkpoint: the fused qkv_proj of a layer has the parts
    q_proj, k_proj and v_proj, and takes `....self_attn.q_proj.weight` and so on.
    """

    bias: nn.Parameter | None

    def __init__(
        self, columns: int, parts: Mapping[str, int], bias: bool, options: LayerOptions
    ) -> None:
        super().__init__()
        self.parts = dict(parts)
        self.columns = columns
        self.rows = sum(parts.values())
        self.stored_as_fp8 = {name: options.stored_as_fp8(name) for name in parts}
        self.bias = options.parameter(self.rows) if bias else None

    def checkpoint_targets(self, path: str) -> Iterator[tuple[str, WeightTarget]]:
        beside = path.rstrip(".").rpartition(".")[0]
        prefix = f"{beside}." if beside else ""
        first = 0
        for name, rows in self.parts.items():
            for end, target in self.part_targets(name, first):
                yield f"{prefix}{name}.{end}", target
            if self.bias is not None:
                yield f"{prefix}{name}.bias", RowsTarget(self.bias, first, rows)
            first += rows

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

    def __init__(
        self, columns: int, parts: Mapping[str, int], bias: bool, options: LayerOptions
    ) -> None:
        super().__init__(columns, parts, bias, options)
        self.weight = options.parameter(self.rows, columns)

    def forward(self, x: Tensor) -> Tensor:
        return ops.linear(x, self.weight, self.bias)

    def part_targets(self, name: str, first: int) -> NamedTargets:
        rows = self.weight.detach().narrow(0, first, self.parts[name])
        yield from float_targets(rows, self.stored_as_fp8[name])


def plain_float_product(x: Tensor, weight: Tensor) -> Tensor:
    """x @ weight.T in float32, after rounding to x's dtype."""
    return ops.linear(x, weight).float()
