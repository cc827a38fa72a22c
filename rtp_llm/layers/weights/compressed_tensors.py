# SPDX-License-Identifier: Apache-2.0
"""Reads quantization_config of the method compressed-tensors, as llm-compressor writes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rtp_llm.layers.weights.fp8_config import UNUSED, fp8_block
from rtp_llm.layers.weights.fp8_formats import (
    Fp8BlockWeights,
    Fp8Channel,
    Fp8ChannelWeights,
    Fp8Format,
    Fp8Tensor,
    Fp8TensorWeights,
)
from rtp_llm.layers.weights.int_config import packed_group
from rtp_llm.layers.weights.stored.fp4 import PackedMxfp4, PackedNvfp4
from rtp_llm.layers.weights.stored.int8 import Int8Channels, Int8Weights
from rtp_llm.layers.weights.stored_config import (
    CACHE_SCHEME,
    StoredModules,
    UnsupportedFormatError,
    module_patterns,
    shown,
)
from rtp_llm.layers.weights.stored_format import StoredFormat
from rtp_llm.ops.fp8.fp8_blocks import BLOCK

_ROW = "quantized checkpoint"
_SCALES = "FP8 checkpoint with other scales"
_SCALE_NAME = "weight_scale"
_UNUSED = UNUSED | {"input_zero_point", "input_global_scale", "weight_shape"}
_Group = Mapping[str, Any]


def read_compressed_tensors(config: Mapping[str, Any]) -> StoredModules:
    """Read the formats of groups of modules, each of which may have a `format` of its own."""
    sparsity = config.get("sparsity_config") or {}
    if not isinstance(sparsity, Mapping) or sparsity.get("format", "dense") != "dense":
        raise UnsupportedFormatError(_ROW, f"sparsity_config {shown(sparsity)}")
    if config.get("transform_config"):
        raise UnsupportedFormatError(_ROW, f"transform_config {shown(config['transform_config'])}")
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        if config.get(CACHE_SCHEME):
            return StoredModules((), unused=_UNUSED)  # only keys and values are quantised
        _reader(config.get("format"))
        raise UnsupportedFormatError(_ROW, "no config_groups")
    whole = config.get("format")
    found = tuple(_group(str(name), group, whole) for name, group in groups.items())
    # Patterns of names count before classes of modules.
    found = tuple(sorted(found, key=lambda group: "Linear" in group[0]))
    return StoredModules(found, module_patterns(config, "ignore"), _UNUSED)


def _group(name: str, group: object, whole: object) -> tuple[tuple[str, ...], StoredFormat]:
    """The modules and the format of a group; `whole` is the format of groups without one."""
    packing = (isinstance(group, Mapping) and group.get("format")) or whole
    read = _reader(packing)
    if not isinstance(group, Mapping) or not isinstance(group.get("weights"), Mapping):
        raise UnsupportedFormatError(_ROW, f"{name} has no weights")
    for what in ("weights", "input_activations"):
        if group.get(what) is not None and not isinstance(group[what], Mapping):
            raise UnsupportedFormatError(_ROW, f"{name}: {what} {shown(group[what])}")
    return module_patterns(group, "targets"), read(name, group)


def _reader(packing: object) -> Callable[[str, _Group], StoredFormat]:
    if not isinstance(packing, str) or packing not in _READERS:
        raise UnsupportedFormatError(_ROW, f"compressed-tensors format {shown(packing)}")
    return _READERS[packing]


def _eight_bits(name: str, group: _Group) -> StoredFormat:
    """Floats or integers of 8 bits, in a tensor of their own type."""
    is_int = group["weights"].get("type", "int") == "int"
    return _int8(name, group) if is_int else _fp8(name, group)


def _check_numbers(name: str, what: str, found: _Group, kind: str, bits: int = 8) -> None:
    """Raise UnsupportedFormatError unless the numbers are of this kind; weights are symmetric."""
    given = found.get("type", "int"), found.get("num_bits")
    symmetric = found.get("symmetric", True) or (kind == "int" and what != "weights")
    if given != (kind, bits) or not symmetric:
        text = f"{name}: {what} of type {shown(given[0])}, {shown(given[1])} bits"
        raise UnsupportedFormatError(_ROW, text + ("" if symmetric else ", not symmetric"))


def _int8(name: str, group: _Group) -> Int8Channels:
    weights, activations = group["weights"], group.get("input_activations")
    _check_numbers(name, "weights", weights, "int")
    strategy = weights.get("strategy")
    if strategy not in ("channel", "tensor"):
        raise UnsupportedFormatError(_ROW, f"{name}: int8 weights with strategy {shown(strategy)}")
    if activations is None:
        return Int8Weights(_SCALE_NAME, strategy == "tensor")
    _check_numbers(name, "input_activations", activations, "int")
    if activations.get("strategy") not in ("token", "tensor", None):
        raise _other_activations(name, activations)
    return Int8Channels(_SCALE_NAME, strategy == "tensor")


def _fp8(name: str, group: _Group) -> Fp8Format:
    weights, activations = group["weights"], group.get("input_activations")
    _check_numbers(name, "weights", weights, "float")
    if activations is None:
        return _fp8_format(name, weights, weights_only=True)
    _check_numbers(name, "input_activations", activations, "float")
    stored = _fp8_format(name, weights)
    _check_activations(name, activations, stored)
    return stored


def _check_activations(name: str, found: Mapping[str, Any], stored: Fp8Format) -> None:
    """Raise UnsupportedFormatError unless activations are quantised at least as exactly here.

    Products of blocks give each 128 channels of a token a scale, the others each token one.
    """
    strategy, dynamic = found.get("strategy"), found.get("dynamic")
    blocks = stored.name == "fp8_block"
    if dynamic and (strategy in ("token", "tensor", None)):
        return
    if dynamic and blocks and strategy == "group" and found.get("group_size") == BLOCK:
        return
    if not dynamic and not blocks and strategy == "tensor":
        return
    raise _other_activations(name, found)


def _other_activations(name: str, found: _Group) -> UnsupportedFormatError:
    strategy, dynamic = found.get("strategy"), found.get("dynamic")
    text = f"{name}: input_activations with strategy {shown(strategy)}, dynamic {shown(dynamic)}"
    return UnsupportedFormatError(_SCALES, text)


def _fp8_format(name: str, weights: _Group, *, weights_only: bool = False) -> Fp8Format:
    strategy = weights.get("strategy")
    if strategy == "channel":
        return (Fp8ChannelWeights if weights_only else Fp8Channel)(_SCALE_NAME)
    if strategy == "tensor":
        return (Fp8TensorWeights if weights_only else Fp8Tensor)(_SCALE_NAME)
    if strategy == "block":
        stored = fp8_block(weights.get("block_structure"), _SCALE_NAME)
        return Fp8BlockWeights(_SCALE_NAME) if weights_only else stored
    raise UnsupportedFormatError(_SCALES, f"{name}: weights with strategy {shown(strategy)}")


def _nvfp4(name: str, group: _Group) -> PackedNvfp4:
    """Activations may be quantised, too; here they stay floats."""
    _check_group(name, group, 16)
    return PackedNvfp4()


def _mxfp4(name: str, group: _Group) -> PackedMxfp4:
    _check_group(name, group, 32)
    return PackedMxfp4()


def _check_group(name: str, group: _Group, size: int) -> None:
    weights = group["weights"]
    _check_numbers(name, "weights", weights, "float", 4)
    if weights.get("group_size") != size:
        found = f"{name}: 4-bit floats in groups of {shown(weights.get('group_size'))}"
        raise UnsupportedFormatError(_ROW, found)


_READERS: dict[str, Callable[[str, _Group], StoredFormat]] = {
    "float-quantized": _eight_bits,
    "int-quantized": _eight_bits,
    "naive-quantized": _eight_bits,
    "nvfp4-pack-quantized": _nvfp4,
    "mxfp4-pack-quantized": _mxfp4,
    "pack-quantized": packed_group,
}
