# SPDX-License-Identifier: Apache-2.0
"""Reads what ModelOpt says about a checkpoint, in config.json or hf_quant_config.json."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rtp_llm.layers.weights.fp8_config import UNUSED
from rtp_llm.layers.weights.fp8_formats import Fp8BlockWeights, Fp8Channel, Fp8Tensor
from rtp_llm.layers.weights.stored.fp4 import Nvfp4
from rtp_llm.layers.weights.stored_config import (
    CACHE_ALGORITHM,
    StoredModules,
    UnsupportedFormatError,
    module_patterns,
    shown,
)
from rtp_llm.layers.weights.stored_format import StoredFormat
from rtp_llm.ops.gemm.nvfp4 import BLOCK

_ROW = "quantized checkpoint"
_MIXED = "MIXED_PRECISION"
_SCALE_NAME = "weight_scale"
_FORMATS: dict[str, StoredFormat] = {
    "FP8": Fp8Tensor(_SCALE_NAME),
    "FP8_PER_CHANNEL_PER_TOKEN": Fp8Channel(_SCALE_NAME),
    "FP8_PB_WO": Fp8BlockWeights(_SCALE_NAME),
    "NVFP4": Nvfp4(),
}


def read_modelopt(config: Mapping[str, Any]) -> StoredModules:
    """One algorithm for all linear layers, or with MIXED_PRECISION one for each listed layer."""
    given = config.get("quantization", config)
    if not isinstance(given, Mapping):
        raise UnsupportedFormatError(_ROW, f"quantization {shown(given)}")
    ignored = module_patterns(given, "exclude_modules", "ignore")
    patterns = tuple(_pattern(each) for each in ignored)
    algorithm = given.get("quant_algo")
    if algorithm is None and given.get(CACHE_ALGORITHM):
        return StoredModules((), patterns, UNUSED)  # only keys and values are quantised
    if algorithm != _MIXED:
        groups = ((("Linear",), _format(algorithm, given)),)
        return StoredModules(groups, patterns, UNUSED)
    layers = given.get("quantized_layers")
    if not isinstance(layers, Mapping) or not all(isinstance(v, Mapping) for v in layers.values()):
        raise UnsupportedFormatError(_ROW, f"{_MIXED} with quantized_layers {shown(layers)}")
    named = {name: _format(each.get("quant_algo"), each) for name, each in layers.items()}
    return StoredModules((), patterns, UNUSED, named)


def _format(algorithm: object, given: Mapping[str, Any]) -> StoredFormat:
    if not isinstance(algorithm, str) or algorithm not in _FORMATS:
        raise UnsupportedFormatError(_ROW, f"ModelOpt's quant_algo {shown(algorithm)}")
    if algorithm == "NVFP4" and (size := given.get("group_size") or BLOCK) != BLOCK:
        raise UnsupportedFormatError(_ROW, f"NVFP4 with group_size {shown(size)}")
    return _FORMATS[algorithm]


def _pattern(name: str) -> str:
    """A regular expression for a name with wildcards; "a*" is also what is inside of a module."""
    if not any(each in name for each in "*?"):
        return name
    letters = {"*": ".*", "?": "."}
    return "re:" + "".join(letters.get(each, re.escape(each)) for each in name) + r"(\..*)?\Z"
