# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch references of the activations."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def silu_and_mul_reference(x: Tensor) -> Tensor:
    """Plain PyTorch reference of `ops.silu_and_mul`: same arguments and results."""
    gate, up = x.float().chunk(2, dim=-1)
    return (functional.silu(gate) * up).to(x.dtype)


def gelu_and_mul_reference(x: Tensor, tanh: bool) -> Tensor:
    """Plain PyTorch reference of `ops.gelu_and_mul`: same arguments and results."""
    gate, up = x.float().chunk(2, dim=-1)
    return (functional.gelu(gate, approximate="tanh" if tanh else "none") * up).to(x.dtype)


def gelu_reference(x: Tensor, tanh: bool) -> Tensor:
    """See rtp_llm.ops.gelu."""
    return functional.gelu(x.float(), approximate="tanh" if tanh else "none").to(x.dtype)
