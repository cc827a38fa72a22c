# SPDX-License-Identifier: Apache-2.0
"""Chooses the kind of linear layer for a device, a quantisation and a checkpoint's weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.device.choice import load_class
from rtp_llm.layers.linear.base import Linear, plain_float_product
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.gguf_blocks import GGUF_FORMATS, TILED_FORMATS
from rtp_llm.layers.weights.interleaved import Interleaved, tensors_of
from rtp_llm.layers.weights.shard_targets import WHOLE, LinearShards
from rtp_llm.layers.weights.stored.mlx import MLX_FORMATS
from rtp_llm.layers.weights.stored_format import FLOAT, FormatError


@dataclass(frozen=True)
class LinearRequest:
    """The input to choose_kind; `stored`: the names of the formats of all parts."""

    options: LayerOptions
    stored: frozenset[str]

    @property
    def quantization(self) -> str:
        return self.options.quantization

    @property
    def plain(self) -> bool:
        """Whether weights are kept as floats: no other kind takes them as they are stored."""
        return self.quantization == "none" and not any(
            kind.as_stored and kind.takes(self) for kind in KINDS.values()
        )

    @property
    def fusable(self) -> bool:
        return _can_fuse(self.options.device, self.options.dtype)

    @property
    def packable(self) -> bool:
        """Whether the layers want packed weights, and the device has a kernel for them."""
        options = self.options
        wanted = options.packs_weights and options.dtype is torch.float32
        return wanted and ops.has_kernel("packed_linear", options.device.type)

    @property
    def tiles_integers(self) -> bool:
        """Whether the device multiplies integers in groups with 16-bit floats as they come."""
        options = self.options
        is_16_bit = options.dtype is not torch.float32
        return is_16_bit and ops.has_kernel("tiled_wna16_linear", options.device.type)

    def keeps_stored(self, operator: str) -> bool:
        """Whether weights stay as they are stored, if the device has a kernel of `operator`."""
        return self.options.keeps(operator)

    def __str__(self) -> str:
        options = self.options
        return (
            f"device {options.device.type}, weights stored as {' and '.join(sorted(self.stored))} "
            f"for activations of {options.dtype}, quantization {options.quantization!r}"
        )


@dataclass(frozen=True)
class LinearKind:
    """One kind of layer, given as "module:class" and imported only when chosen.

    `formats`: the stored formats that it takes (None: all, which it dequantises). `as_stored`: it
    keeps weights as they are stored, so that they are not dequantised for another kind.
    """

    place: str
    can_handle: Callable[[LinearRequest], bool]
    formats: frozenset[str] | None = None
    as_stored: bool = False

    def takes(self, request: LinearRequest) -> bool:
        """Whether the layer can have the formats and options of `request`."""
        known = self.formats is None or request.stored <= self.formats
        return known and self.can_handle(request)


_FLOAT = frozenset({FLOAT.name})
_MXFP4 = frozenset({"mxfp4_packed"})
_NVFP4 = frozenset({"nvfp4"})
_FP8_BLOCKS = frozenset({"fp8_block", "fp8_block_weight"})
_FP8_ROWS = frozenset({"fp8_channel", "fp8_channel_weight", "fp8_tensor", "fp8_tensor_weight"})
_INT_GROUPS = frozenset({"gptq", "awq", "pack_quantized"})
KINDS: dict[str, LinearKind] = {
    "plain": LinearKind(
        "rtp_llm.layers.linear.base:PlainLinear",
        lambda request: request.plain and not request.fusable and not request.packable,
    ),
    "packed": LinearKind(
        "rtp_llm.layers.linear.packed:PackedLinear",
        lambda request: request.plain and request.packable,
    ),
    "fused": LinearKind(
        "rtp_llm.layers.linear.fused:FusedLinear",
        lambda request: request.plain and request.fusable,
    ),
    "int8": LinearKind(
        "rtp_llm.layers.linear.int8:Int8Linear",
        lambda request: request.quantization == "int8",
        formats=_FLOAT,
    ),
    "w8a8_int8": LinearKind(
        "rtp_llm.layers.linear.int8:W8A8Int8Linear",
        lambda request: request.quantization == "w8a8_int8",
        formats=_FLOAT,
    ),
    "int4": LinearKind(
        "rtp_llm.layers.linear.int4:Int4Linear",
        lambda request: request.quantization == "int4" and not request.tiles_integers,
        formats=_FLOAT,
    ),
    "tiled_int4": LinearKind(
        "rtp_llm.layers.linear.int4:TiledInt4Linear",
        lambda request: request.quantization == "int4" and request.tiles_integers,
        formats=_FLOAT,
    ),
    "int8_weight": LinearKind(
        "rtp_llm.layers.linear.int8:Int8Linear",
        lambda request: request.keeps_stored("int8_linear"),
        formats=frozenset({"int8_weight"}),
        as_stored=True,
    ),
    "int8_channel": LinearKind(
        "rtp_llm.layers.linear.int8:W8A8Int8Linear",
        lambda request: request.keeps_stored("w8a8_int8_linear"),
        formats=frozenset({"int8_channel"}),
        as_stored=True,
    ),
    "gguf": LinearKind(
        "rtp_llm.layers.linear.gguf:GgufLinear",
        lambda request: bool(request.stored - _FLOAT) and request.keeps_stored("gguf_linear"),
        formats=_FLOAT | GGUF_FORMATS,
        as_stored=True,
    ),
    "tiled_stored": LinearKind(
        "rtp_llm.layers.linear.tiled_stored:TiledStoredLinear",
        lambda request: (
            bool(request.stored & (TILED_FORMATS | _MXFP4 | _NVFP4))
            and request.keeps_stored("tiled_wna16_linear")
            and request.options.dtype is torch.bfloat16
        ),
        formats=_FLOAT | GGUF_FORMATS | _MXFP4 | _NVFP4,
        as_stored=True,
    ),
    "mxfp4": LinearKind(
        "rtp_llm.layers.linear.mxfp4:Mxfp4Linear",
        lambda request: request.keeps_stored("mxfp4_grouped_linear"),
        formats=_MXFP4,
        as_stored=True,
    ),
    "table4": LinearKind(
        "rtp_llm.layers.linear.table4:Table4Linear",
        lambda request: len(request.stored) == 1 and request.keeps_stored("table4_grouped_linear"),
        formats=frozenset({"nvfp4", "bitsandbytes_nf4", "bitsandbytes_fp4"}),
        as_stored=True,
    ),
    "mlx": LinearKind(
        "rtp_llm.layers.linear.mlx:MlxLinear",
        lambda request: len(request.stored) == 1 and request.keeps_stored("wna16_linear"),
        formats=MLX_FORMATS,
        as_stored=True,
    ),
    "fp8": LinearKind(
        "rtp_llm.layers.linear.fp8:Fp8Linear",
        lambda request: (
            request.options.multiplies_fp8
            and (request.stored == {"fp8_block"} or request.quantization == "fp8")
        ),
        formats=_FLOAT | {"fp8_block"},
        as_stored=True,
    ),
    "fp8_channel": LinearKind(
        "rtp_llm.layers.linear.fp8_channel:Fp8ChannelLinear",
        lambda request: request.options.multiplies_fp8 and request.quantization in ("none", "fp8"),
        formats=frozenset({"fp8_channel", "fp8_tensor"}),
        as_stored=True,
    ),
    "fp8_weight": LinearKind(
        "rtp_llm.layers.linear.fp8_weight:Fp8WeightLinear",
        lambda request: (
            request.keeps_stored("fp8_weight_linear")
            and not request.options.multiplies_fp8
            and (request.stored <= _FP8_BLOCKS or request.stored <= _FP8_ROWS)
        ),
        formats=_FP8_BLOCKS | _FP8_ROWS,
        as_stored=True,
    ),
    "int_groups": LinearKind(
        "rtp_llm.layers.linear.int_groups:IntGroupsLinear",
        lambda request: request.keeps_stored("wna16_linear"),
        formats=_INT_GROUPS,
        as_stored=True,
    ),
    "tiled_groups": LinearKind(
        "rtp_llm.layers.linear.tiled_groups:TiledGroupsLinear",
        lambda request: request.keeps_stored("tiled_wna16_linear") and request.tiles_integers,
        formats=_INT_GROUPS,
        as_stored=True,
    ),
}


def choose_kind(request: LinearRequest) -> str:
    """Return the one name in KINDS that takes `request`; FormatError if none or several do."""
    able = [name for name, kind in KINDS.items() if kind.takes(request)]
    if len(able) != 1:
        found = f"{' and '.join(able)} all do" if able else f"none of {', '.join(KINDS)} does"
        raise FormatError(f"one kind of linear layer should take {request}; {found}")
    return able[0]


def make_linear(
    columns: int,
    parts: Mapping[str, int],
    bias: bool,
    options: LayerOptions,
    interleaved: Sequence[Interleaved] = (),
    shards: LinearShards = WHOLE,
) -> Linear:
    """Create the linear layer for `options` and the stored formats of the parts.

    See Linear. Plain weights use the device's fused kernels for few rows, if it has them.
    """
    names = tensors_of(parts, interleaved)
    stored = frozenset(options.format_of(name).name for name in names)
    layer: type[Linear] = load_class(KINDS[choose_kind(LinearRequest(options, stored))].place)
    return layer(columns, parts, bias, options, interleaved, shards)


def make_float_product(weight: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function that multiplies rows by `weight` with float32 results, for its device."""
    can = _can_fuse(weight.device, weight.dtype)
    return ops.linear_float if can else plain_float_product


def _can_fuse(device: torch.device, dtype: torch.dtype) -> bool:
    return dtype is not torch.float32 and ops.has_kernel("fused_linear_rows", device.type)
