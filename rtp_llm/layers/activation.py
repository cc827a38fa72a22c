"""Activations of gated feed-forward layers."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rtp_llm import ops


@dataclass(frozen=True)
class GatedActivation:
    """f(first half of a row) * second half; `name` is "silu", "gelu" or "gelu_tanh".

    ValueError for another name.
    """

    name: str

    def __post_init__(self) -> None:
        if self.name not in _FUNCTIONS:
            raise ValueError(f"activation {self.name!r} is unknown; valid: {', '.join(_FUNCTIONS)}")

    def __call__(self, x: Tensor) -> Tensor:
        return _FUNCTIONS[self.name](x)


def _gelu(x: Tensor) -> Tensor:
    return ops.gelu_and_mul(x, False)


def _gelu_tanh(x: Tensor) -> Tensor:
    return ops.gelu_and_mul(x, True)


_FUNCTIONS = {"silu": ops.silu_and_mul, "gelu": _gelu, "gelu_tanh": _gelu_tanh}
