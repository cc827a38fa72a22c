"""Plain PyTorch references and Meta functions of the gated activations."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def _half(x: Tensor) -> Tensor:
    if x.shape[-1] % 2:
        raise RuntimeError(f"x is {list(x.shape)}; expected an even last dimension")
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))


def silu_and_mul_reference(x: Tensor) -> Tensor:
    """See rtp_llm.ops.silu_and_mul."""
    gate, up = x.float().chunk(2, dim=-1)
    return (functional.silu(gate) * up).to(x.dtype)


def silu_and_mul_meta(x: Tensor) -> Tensor:
    """Shape and dtype of silu_and_mul."""
    return _half(x)


def gelu_and_mul_reference(x: Tensor, tanh: bool) -> Tensor:
    """See rtp_llm.ops.gelu_and_mul."""
    gate, up = x.float().chunk(2, dim=-1)
    return (functional.gelu(gate, approximate="tanh" if tanh else "none") * up).to(x.dtype)


def gelu_and_mul_meta(x: Tensor, tanh: bool) -> Tensor:
    """Shape and dtype of gelu_and_mul."""
    return _half(x)
