"""How the parameters of all layers of one model are kept."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from rtp_llm.ops import huge_pages


@dataclass(frozen=True)
class LayerOptions:
    """`dtype` of weights and activations; `quantization` of linear weights: "none" or "int8"."""

    dtype: torch.dtype
    device: torch.device
    quantization: str = "none"

    def parameter(self, *shape: int, dtype: torch.dtype | None = None) -> nn.Parameter:
        """Memory for a weight that the loader fills; nothing is touched before that."""
        dtype = dtype or self.dtype
        if self.device.type == "cpu":
            empty = huge_pages.empty(shape, dtype)
        else:
            empty = torch.empty(shape, dtype=dtype, device=self.device)
        return nn.Parameter(empty, requires_grad=False)
