"""The kind of linear layer for a quantisation."""

from __future__ import annotations

from collections.abc import Mapping

from rtp_llm.layers.int8_linear import Int8Linear
from rtp_llm.layers.linear import Linear, PlainLinear
from rtp_llm.layers.options import LayerOptions

_KINDS: dict[str, type[Linear]] = {"none": PlainLinear, "int8": Int8Linear}


def make_linear(
    columns: int, parts: Mapping[str, int], bias: bool, options: LayerOptions
) -> Linear:
    """The linear layer for the quantisation in `options`; ValueError for an unknown one."""
    kind = _KINDS.get(options.quantization)
    if kind is None:
        known = ", ".join(_KINDS)
        raise ValueError(f"quantization {options.quantization!r} is unknown; valid: {known}")
    return kind(columns, parts, bias, options)
