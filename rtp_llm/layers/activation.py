# SPDX-License-Identifier: Apache-2.0
"""Activations of gated feed-forward layers."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rtp_llm import ops

_NAMES = ("silu", "gelu", "gelu_tanh")


@dataclass(frozen=True)
class GatedActivation:
    """f(first half of a row) * second half; `name` is "silu", "gelu" or "gelu_tanh".

    Raises ValueError for any other name.
    """

    name: str

    def __post_init__(self) -> None:
        if self.name not in _NAMES:
            raise ValueError(f"activation {self.name!r} is unknown; valid: {', '.join(_NAMES)}")

    def __call__(self, x: Tensor) -> Tensor:
        if self.name == "silu":
            return ops.silu_and_mul(x)
        return ops.gelu_and_mul(x, self.name == "gelu_tanh")
