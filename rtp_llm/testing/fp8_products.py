# SPDX-License-Identifier: Apache-2.0
"""Makes the CPU a device that multiplies FP8, with operators in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.device.cpu import CpuDevice
from rtp_llm.ops.fp8 import fp8_gemm_reference
from rtp_llm.ops.fp8.fp8_blocks import dequantize_rows, dequantize_weight

# Operators that count as the CPU's own. Those in Triton must be allowed as references too.
_REFERENCES = ("fp8_linear", "triton_gate_up", "triton_down")


def multiply_fp8_on_cpu(put: Callable[[Any, str, Any], None] = setattr) -> None:
    """`put` is a test's monkeypatch.setattr, or setattr for good in a process of its own."""
    refused = {name: why for name, why in CpuDevice.refused.items() if name != "fp8_products"}
    has_kernel = ops.has_kernel
    put(CpuDevice, "refused", refused)
    put(ops, "has_kernel", lambda name, kind: name in _REFERENCES or has_kernel(name, kind))


def round_products_once(put: Callable[[Any, str, Any], None] = setattr) -> None:
    """Products in float64: then a row has the same bits whatever other rows it is with."""
    put(fp8_gemm_reference, "_product", _product)


def _product(q: Tensor, scales: Tensor, weight: Tensor, weight_scales: Tensor) -> Tensor:
    x, wide = dequantize_rows(q, scales), dequantize_weight(weight, weight_scales)
    product: Tensor = x.double() @ wide.double().T
    return product.to(torch.bfloat16)
