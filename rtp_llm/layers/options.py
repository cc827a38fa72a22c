# SPDX-License-Identifier: Apache-2.0
"""Options that all layers of a model share: devices, dtypes, quantisation and ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from rtp_llm import ops
from rtp_llm.attention.model_inputs import NO_INPUTS, ModelInputs
from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.device.capabilities import HOST, Capabilities
from rtp_llm.distributed.tensor_parallel import SINGLE, TensorParallel
from rtp_llm.layers.weights.stored_format import FLOAT, StoredFormat
from rtp_llm.ops.huge_pages import empty_lasting, empty_on

if TYPE_CHECKING:
    from rtp_llm.layers.moe.dispatcher import ExpertHooks

_NO_MEMORY = torch.device("meta")


def torch_dtype(settings: ModelSettings) -> torch.dtype:
    """The dtype of weights and activations, for settings whose dtype is not "auto"."""
    dtype: torch.dtype = getattr(torch, settings.dtype)
    return dtype


@dataclass(frozen=True)
class LayerOptions:
    """The model's `settings` (their dtype is never "auto"), and what else a layer has to know.

    `capabilities` are the device's. `experts` says where experts are (None: all of them here).
    `path` is the layer's place in the checkpoint's names ("model.layers.3.self_attn.");
    `formats` has the stored format of every module of the checkpoint whose weight is not a float
    tensor, and `fp8_products` says whether the device multiplies FP8 weights as they are.
    `planned`: parameters have shapes and take no memory. `tensor_parallel`: the ranks that share
    each layer. `inputs`: what the current step feeds the model. `packs_weights`: float weights are
    packed for the device's kernel once loaded, if it has one; nothing else reads them.
    `keeps_stored`: weights stay as they are stored where layers can multiply them.
    `cache_scales`: the scales of keys and values in a KV cache of 8-bit floats, by the path of each
    attention that has any.
    """

    settings: ModelSettings
    device: torch.device
    capabilities: Capabilities = HOST
    experts: ExpertHooks | None = None
    path: str = ""
    formats: Mapping[str, StoredFormat] = field(default_factory=dict)
    fp8_products: bool = False
    planned: bool = False
    tensor_parallel: TensorParallel = SINGLE
    inputs: ModelInputs = NO_INPUTS
    packs_weights: bool = False
    keeps_stored: bool = True
    cache_scales: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def dtype(self) -> torch.dtype:
        """Number type of weights and activations."""
        return torch_dtype(self.settings)

    @property
    def multiplies_fp8(self) -> bool:
        """Whether FP8 weights are multiplied as FP8, which requires bfloat16 results."""
        return self.fp8_products and self.dtype is torch.bfloat16

    @property
    def quantization(self) -> str:
        """How weights are quantised on loading: "none", "int8", "w8a8_int8", "int4" or "fp8"."""
        return self.settings.quantization

    def inside(self, name: str) -> LayerOptions:
        """The options for the child `name` of this path."""
        return replace(self, path=f"{self.path}{name}.")

    def of_drafts(self) -> LayerOptions:
        """The options for draft layers, whose experts are all local wherever the model's are."""
        return replace(self, experts=self.experts and self.experts.of_drafts)

    def unquantized(self) -> LayerOptions:
        """Options for a weight that keeps its stored format, whatever `quantization` says."""
        return replace(self, settings=replace(self.settings, quantization="none"))

    def dequantized(self) -> LayerOptions:
        """The options for a weight that must have `dtype`, whatever its stored format."""
        return replace(self.unquantized(), fp8_products=False, keeps_stored=False)

    def keeps(self, operator: str) -> bool:
        """Whether weights stay as they are stored, if the device has a kernel of `operator`."""
        wanted = self.keeps_stored and self.quantization == "none"
        return wanted and ops.has_kernel(operator, self.device.type)

    def format_of(self, name: str) -> StoredFormat:
        """The format in which the checkpoint stores the weight of the child `name`."""
        return self.formats.get(f"{self.path}{name}", FLOAT)

    def parameter(
        self, *shape: int, dtype: torch.dtype | None = None, lasting: bool = False
    ) -> nn.Parameter:
        """Allocate a weight for the loader to fill; its memory is not touched before.

        `lasting`: the layer keeps it as it is loaded, so that it may share pages with others.
        """
        device = _NO_MEMORY if self.planned else self.device
        make = empty_lasting if lasting else empty_on
        return nn.Parameter(make(device, shape, dtype or self.dtype), requires_grad=False)
