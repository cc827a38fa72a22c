# SPDX-License-Identifier: Apache-2.0
"""Activations of gated feed-forward layers."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rtp_llm import ops

SWIGLU_OAI = "swigluoai"
_NAMES = ("silu", "gelu", "gelu_tanh", SWIGLU_OAI)


@dataclass(frozen=True)
class GatedActivation:
    """f(first half of a row) * second half; `name` is "silu", "gelu" or "gelu_tanh".

    "swigluoai", the one of gpt-oss, limits the gate to at most `limit` and the second half, up, to
    +-`limit`; the result is gate * sigmoid(alpha * gate) * (up + 1).
    Raises ValueError for any other name.
    """

    name: str
    alpha: float = 1.702
    limit: float = 7.0

    def __post_init__(self) -> None:
        if self.name not in _NAMES:
            raise ValueError(f"activation {self.name!r} is unknown; valid: {', '.join(_NAMES)}")

    def __call__(self, x: Tensor) -> Tensor:
        if self.name == "silu":
            return ops.silu_and_mul(x)
        if self.name == SWIGLU_OAI:
            return self._swiglu_oai(x)
        return ops.gelu_and_mul(x, self.name == "gelu_tanh")

    def _swiglu_oai(self, x: Tensor) -> Tensor:
        gate, up = x.float().chunk(2, dim=-1)
        gate = gate.clamp(max=self.limit)
        up = up.clamp(-self.limit, self.limit).add_(1)
        return (gate.mul(self.alpha).sigmoid_().mul_(gate).mul_(up)).to(x.dtype)
