"""The kind of linear layer for a quantisation and a device."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from rtp_llm.layers.linear import Linear, plain_float_product
from rtp_llm.layers.options import LayerOptions
from rtp_llm.ops import fused_gemm

# Imported only when a model is kept that way.
_FUSED = "rtp_llm.layers.fused_linear"
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
    if options.quantization == "none" and fused_gemm.takes(
        sum(parts.values()), columns, options.dtype, options.device.type
    ):
        place = f"{_FUSED}:FusedLinear"
    kind: type[Linear] = _imported(place)
    return kind(columns, parts, bias, options)


def make_float_product(weight: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """What multiplies rows with `weight` (or one like it) and gives float32, on its device."""
    rows, columns = weight.shape
    if fused_gemm.takes(rows, columns, weight.dtype, weight.device.type):
        fused: Callable[[Tensor, Tensor], Tensor] = _imported(f"{_FUSED}:fused_float_product")
        return fused
    return plain_float_product


def _imported(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
