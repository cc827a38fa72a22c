"""Plain PyTorch reference of the output gate."""

from __future__ import annotations

from torch import Tensor


def sigmoid_gate_reference(x: Tensor, gate: Tensor) -> None:
    """See rtp_llm.ops.sigmoid_gate."""
    x.copy_((x.float() * gate.float().sigmoid()).to(x.dtype))
