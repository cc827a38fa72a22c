"""Plain PyTorch references and Meta functions of the linear layers."""

from __future__ import annotations

from torch import Tensor


def linear_reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """See rtp_llm.ops.linear."""
    result = x.float() @ weight.float().T
    if bias is not None:
        result = result + bias.float()
    return result.to(x.dtype)


def linear_meta(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Shape and dtype of linear."""
    return x.new_empty((x.shape[0], weight.shape[0]))
