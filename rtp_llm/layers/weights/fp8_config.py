# SPDX-License-Identifier: Apache-2.0
"""Reads quantization_config of the methods fp8 (blocks or tensors) and fbgemm_fp8 (channels)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rtp_llm.layers.weights.fp8_formats import Fp8Block, Fp8Channel, Fp8Format, Fp8Tensor
from rtp_llm.layers.weights.stored_config import (
    StoredModules,
    UnsupportedFormatError,
    module_patterns,
    shown,
)
from rtp_llm.ops.fp8.fp8_blocks import BLOCK

# Scales of activations and of cached keys and values.
UNUSED = frozenset(
    {
        "input_scale",
        "activation_scale",
        "output_scale",
        "input_scale_ub",
        "q_scale",
        "k_scale",
        "v_scale",
        "kv_scale",
        "prob_output_scale",
    }
)
_NUMBERS = ("e4m3", "float8_e4m3fn")
_LISTS = ("modules_to_not_convert", "ignored_layers")


def read_fp8(config: Mapping[str, Any]) -> StoredModules:
    """Blocks of 128 x 128, or one scale for each tensor without `weight_block_size`."""
    numbers, block = config.get("fmt", "e4m3"), config.get("weight_block_size")
    if numbers not in _NUMBERS:
        raise UnsupportedFormatError("FP8 checkpoint of other blocks", f"fmt {shown(numbers)}")
    scheme = config.get("activation_scheme", "dynamic")
    allowed = ("dynamic",) if block else ("dynamic", "static")
    if scheme not in allowed:
        found = f"activation_scheme {shown(scheme)}"
        raise UnsupportedFormatError("FP8 checkpoint with other scales", found)
    return _all_linear(fp8_block(block) if block else Fp8Tensor("weight_scale"), config)


def read_fbgemm_fp8(config: Mapping[str, Any]) -> StoredModules:
    """A scale for each row."""
    return _all_linear(Fp8Channel("weight_scale"), config)


def fp8_block(size: object, scale_name: str = "weight_scale_inv") -> Fp8Format:
    """The format of blocks of `size`. Raises UnsupportedFormatError unless it is [128, 128]."""
    if size != [BLOCK, BLOCK]:
        found = f"weight_block_size {shown(size)}"
        raise UnsupportedFormatError("FP8 checkpoint of other blocks", found)
    return Fp8Block(scale_name)


def _all_linear(stored: Fp8Format, config: Mapping[str, Any]) -> StoredModules:
    return StoredModules(((("Linear",), stored),), module_patterns(config, *_LISTS), UNUSED)
