# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch references of the gates of attention and of shared experts."""

from __future__ import annotations

from torch import Tensor


def sigmoid_gate_reference(x: Tensor, gate: Tensor) -> None:
    """Plain PyTorch reference of `ops.sigmoid_gate`: same arguments and results."""
    x.copy_((x.float() * gate.float().sigmoid()).to(x.dtype))


def add_sigmoid_gated_reference(out: Tensor, y: Tensor, x: Tensor, gate: Tensor) -> None:
    """Plain PyTorch reference of `ops.add_sigmoid_gated`: same arguments and results."""
    weight = (x.float() @ gate.float().T).sigmoid()
    out.copy_((out.float() + y.float() * weight).to(out.dtype))
