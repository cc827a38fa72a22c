# SPDX-License-Identifier: Apache-2.0
"""Linear layers in float32 whose weight is packed once loaded."""

from __future__ import annotations

from torch import Tensor, nn

from rtp_llm import ops
from rtp_llm.layers.linear.base import PlainLinear
from rtp_llm.ops.gemm.packed_layout import pack_columns


class PackedLinear(PlainLinear):
    """Before finish_loading, weight is [rows, columns]; afterwards it has the kernel's layout."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.packed_linear(x, self.weight, self.bias, self.rows)

    def gelu(self, x: Tensor) -> Tensor:
        return ops.packed_linear(x, self.weight, self.bias, self.rows, "gelu")

    def finish_loading(self) -> None:
        self.weight = nn.Parameter(pack_columns(self.weight.detach()), requires_grad=False)
