"""The kind of linear layer for a quantisation."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from rtp_llm.layers.linear import Linear
from rtp_llm.layers.options import LayerOptions

# Imported only when a model is kept that way.
_KINDS = {
    "none": "rtp_llm.layers.linear:PlainLinear",
    "int8": "rtp_llm.layers.int8_linear:Int8Linear",
}


def make_linear(
    columns: int, parts: Mapping[str, int], bias: bool, options: LayerOptions
) -> Linear:
    """The linear layer for the quantisation in `options`; ValueError for an unknown one."""
    place = _KINDS.get(options.quantization)
    if place is None:
        known = ", ".join(_KINDS)
        raise ValueError(f"quantization {options.quantization!r} is unknown; valid: {known}")
    module, _, name = place.partition(":")
    kind: type[Linear] = getattr(importlib.import_module(module), name)
    return kind(columns, parts, bias, options)
