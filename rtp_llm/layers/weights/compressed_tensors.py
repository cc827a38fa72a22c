# SPDX-License-Identifier: Apache-2.0
"""Reads quantization_config of the method compressed-tensors, as llm-compressor writes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rtp_llm.layers.weights.fp8_config import UNUSED, fp8_block
from rtp_llm.layers.weights.fp8_formats import Fp8Channel, Fp8Format, Fp8Tensor
from rtp_llm.layers.weights.stored_config import (
    StoredModules,
    UnsupportedFormatError,
    module_patterns,
    shown,
)
from rtp_llm.ops.fp8.fp8_blocks import BLOCK

_ROW = "quantized checkpoint"
_SCALES = "FP8 checkpoint with other scales"
_PACKINGS = ("float-quantized", "naive-quantized")
_SCALE_NAME = "weight_scale"


def read_compressed_tensors(config: Mapping[str, Any]) -> StoredModules:
    """FP8 weights with a scale for each block, channel or tensor, by groups of modules."""
    packing = config.get("format")
    if packing not in _PACKINGS:
        raise UnsupportedFormatError(_ROW, f"compressed-tensors format {shown(packing)}")
    sparsity = config.get("sparsity_config") or {}
    if not isinstance(sparsity, Mapping) or sparsity.get("format", "dense") != "dense":
        raise UnsupportedFormatError(_ROW, f"sparsity_config {shown(sparsity)}")
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise UnsupportedFormatError(_ROW, "no config_groups")
    found = tuple(_group(str(name), group) for name, group in groups.items())
    # Patterns of names count before classes of modules.
    found = tuple(sorted(found, key=lambda group: "Linear" in group[0]))
    return StoredModules(found, module_patterns(config, "ignore"), UNUSED)


def _group(name: str, group: object) -> tuple[tuple[str, ...], Fp8Format]:
    if not isinstance(group, Mapping) or not isinstance(group.get("weights"), Mapping):
        raise UnsupportedFormatError(_ROW, f"{name} has no weights")
    targets = module_patterns(group, "targets")
    for what in ("weights", "input_activations"):
        _check_numbers(name, what, group.get(what))
    stored = _format(name, group["weights"])
    _check_activations(name, group["input_activations"], stored)
    return targets, stored


def _check_numbers(name: str, what: str, found: object) -> None:
    """Raise UnsupportedFormatError unless the numbers are symmetric 8-bit floats."""
    if not isinstance(found, Mapping):
        raise UnsupportedFormatError(_SCALES, f"{name} has no {what}")
    kind, bits, symmetric = found.get("type"), found.get("num_bits"), found.get("symmetric", True)
    if (kind, bits) != ("float", 8) or not symmetric:
        text = f"{name}: {what} of type {shown(kind)}, {shown(bits)} bits"
        text += "" if symmetric else ", not symmetric"
        raise UnsupportedFormatError(_ROW, text)


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
    text = f"{name}: input_activations with strategy {shown(strategy)}, dynamic {shown(dynamic)}"
    raise UnsupportedFormatError(_SCALES, text)


def _format(name: str, weights: Mapping[str, Any]) -> Fp8Format:
    strategy = weights.get("strategy")
    if strategy == "channel":
        return Fp8Channel(_SCALE_NAME)
    if strategy == "tensor":
        return Fp8Tensor(_SCALE_NAME)
    if strategy == "block":
        return fp8_block(weights.get("block_structure"), _SCALE_NAME)
    raise UnsupportedFormatError(_SCALES, f"{name}: weights with strategy {shown(strategy)}")
