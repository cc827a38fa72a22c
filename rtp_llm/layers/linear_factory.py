"""The kind of linear layer for a quantisation and a device."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.layers.linear import Linear, plain_float_product
from rtp_llm.layers.options import LayerOptions

# Imported only when a model is kept that way.
_FUSED = "rtp_llm.layers.fused_linear:FusedLinear"
_KINDS = {
    "none": "rtp_llm.layers.linear:PlainLinear",
    "int8": "rtp_llm.layers.int8_linear:Int8Linear",
}


def make_linear(
    columns: int, parts: Mapping[str, int], bias: bool, options: LayerOptions
) -> Linear:
    """The linear layer for the quantisation in `options`; ValueError for an unknown one.

    Where the device has kernels for few rows and what surrounds them, plain weights use them.
    """
    place = _KINDS.get(options.quantization)
    if place is None:
        known = ", ".join(_KINDS)
        raise ValueError(f"quantization {options.quantization!r} is unknown; valid: {known}")
    if options.quantization == "none" and _can_fuse(options.device, options.dtype):
        place = _FUSED
    module, _, name = place.partition(":")
    kind: type[Linear] = getattr(importlib.import_module(module), name)
    return kind(columns, parts, bias, options)


def make_float_product(weight: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """What multiplies rows with `weight` and gives float32, on its device."""
    can = _can_fuse(weight.device, weight.dtype)
    return ops.linear_float if can else plain_float_product


def _can_fuse(device: torch.device, dtype: torch.dtype) -> bool:
    return dtype is not torch.float32 and ops.has_kernel("fused_linear_rows", device.type)
