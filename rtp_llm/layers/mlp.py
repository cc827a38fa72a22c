"""The gated feed-forward layer."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from rtp_llm import ops
from rtp_llm.layers.layer import Layer
from rtp_llm.layers.linear_factory import make_linear
from rtp_llm.layers.options import LayerOptions


def _gelu(x: Tensor) -> Tensor:
    return ops.gelu_and_mul(x, False)


def _gelu_tanh(x: Tensor) -> Tensor:
    return ops.gelu_and_mul(x, True)


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": ops.silu_and_mul,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
}


class GatedMLP(Layer):
    """down(act(gate(x)) * up(x)) with gate and up as one product."""

    def __init__(
        self, hidden: int, intermediate: int, act: str, bias: bool, options: LayerOptions
    ) -> None:
        super().__init__()
        parts = {"gate_proj": intermediate, "up_proj": intermediate}
        self.gate_up_proj = make_linear(hidden, parts, bias, options)
        self.down_proj = make_linear(intermediate, {"down_proj": hidden}, bias, options)
        self.activation = _ACTIVATIONS[act]

    def forward(self, x: Tensor) -> Tensor:
        gated = self.activation(self.gate_up_proj(x))
        projected: Tensor = self.down_proj(gated)
        return projected
