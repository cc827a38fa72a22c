# SPDX-License-Identifier: Apache-2.0
"""FP8 products with a scale for each token and each output channel.

x = q * scale for e4m3 numbers q: activations [M, K] with float32 scales [M, 1], weights [N, K] with
float32 scales [N, 1]. Sums are float32, results bfloat16. RuntimeError on a mismatch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rtp_llm.ops.declare import operator
from rtp_llm.ops.fp8 import fp8_library
from rtp_llm.ops.fp8.fp8_blocks import E4M3
from rtp_llm.ops.registry import Operator


@operator(composite=True, triton="fp8.fp8_channel:quantize_tokens")
def fp8_quantize_tokens(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise each row with one scale; the largest magnitude becomes 448.

    x [M, K] of float32, bfloat16 or float16, contiguous. Returns (q e4m3 [M, K], scales float32 [M,
    1]). RuntimeError on a mismatch.
    """
    return x.new_empty(x.shape, dtype=E4M3), x.new_empty((len(x), 1), dtype=torch.float32)


def _linear(kernel: Operator, given: dict[str, Any]) -> Any:
    operands = given["q"], given["scales"], given["weight"], given["weight_scales"]
    if fp8_library.takes_channels(given["q"], given["weight"]):
        return fp8_library.channel_product(*operands)
    return kernel.call(*operands)


@operator(composite=True, dispatch=_linear, triton="fp8.fp8_channel:channel_linear")
def fp8_channel_linear(q: Tensor, scales: Tensor, weight: Tensor, weight_scales: Tensor) -> Tensor:
    """q [M, K] times weight [N, K] transposed, all contiguous: bfloat16 [M, N].

    CUTLASS multiplies through torch where it supports the sizes. RuntimeError on a mismatch.
    """
    return q.new_empty((q.shape[0], weight.shape[0]), dtype=torch.bfloat16)
