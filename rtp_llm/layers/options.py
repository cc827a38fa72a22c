"""How the parameters of all layers of one model are kept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from rtp_llm.ops.huge_pages import empty_on

if TYPE_CHECKING:
    from rtp_llm.layers.moe.router import ExpertHooks

_NO_MEMORY = torch.device("meta")


@dataclass(frozen=True)
class LayerOptions:
    """`dtype` of weights and activations; `quantization` that happens while loading.

    `quantization`: "none", "int8" or "fp8". `capability`: see Device.capability. `experts` says
    where experts are (None: all of them here), `moe_strategy` what computes them ("auto": the best
    that can). `path` is the layer's place in the checkpoint's names ("model.layers.3.self_attn.");
    `fp8_weights` names the weights that the checkpoint has in FP8 blocks, and `fp8_products` says
    whether the device multiplies such weights as they are. `planned`: parameters have shapes and
    take no memory.
    """

    dtype: torch.dtype
    device: torch.device
    quantization: str = "none"
    capability: tuple[int, int] = (0, 0)
    experts: ExpertHooks | None = None
    moe_strategy: str = "auto"
    path: str = ""
    fp8_weights: frozenset[str] = frozenset()
    fp8_products: bool = False
    planned: bool = False

    def inside(self, name: str) -> LayerOptions:
        """The options of what is called `name` below this place."""
        return replace(self, path=f"{self.path}{name}.")

    def unquantized(self) -> LayerOptions:
        """For a weight that is kept as the checkpoint has it, whatever `quantization` says."""
        return replace(self, quantization="none")

    def dequantized(self) -> LayerOptions:
        """For a weight that is wanted in `dtype`, FP8 blocks of the checkpoint too."""
        return replace(self, quantization="none", fp8_products=False)

    def stored_as_fp8(self, name: str) -> bool:
        """Whether the weight of `name` below this place is in FP8 blocks in the checkpoint."""
        return f"{self.path}{name}.weight" in self.fp8_weights

    def parameter(self, *shape: int, dtype: torch.dtype | None = None) -> nn.Parameter:
        """Memory for a weight that the loader fills; nothing is touched before that."""
        device = _NO_MEMORY if self.planned else self.device
        return nn.Parameter(empty_on(device, shape, dtype or self.dtype), requires_grad=False)
