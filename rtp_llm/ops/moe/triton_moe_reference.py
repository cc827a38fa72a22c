"""Plain PyTorch references of the experts in Triton."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from rtp_llm.ops.moe.moe_reference import grouped_linear_reference


def triton_gate_up_reference(
    x: Tensor, weight: Tensor, rows: Tensor, offsets: Tensor, top_k: int
) -> Tensor:
    """See rtp_llm.ops.triton_gate_up."""
    entries = x.float()[rows.long() // top_k]
    gate, up = grouped_linear_reference(entries, weight.float(), offsets).chunk(2, dim=-1)
    return (functional.silu(gate) * up).to(x.dtype)


def triton_down_reference(x: Tensor, weight: Tensor, rows: Tensor, offsets: Tensor) -> Tensor:
    """See rtp_llm.ops.triton_down."""
    return grouped_linear_reference(x.float(), weight.float(), offsets).to(x.dtype)
