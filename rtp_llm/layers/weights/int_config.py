# SPDX-License-Identifier: Apache-2.0
"""Reads quantization_config of GPTQ, AWQ and AutoRound, and packed groups of compressed-tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rtp_llm.layers.weights.int_formats import Awq, Gptq, IntGroups, PackQuantized
from rtp_llm.layers.weights.stored_config import (
    StoredModules,
    UnsupportedFormatError,
    check_pattern,
    module_patterns,
    shown,
)
from rtp_llm.layers.weights.stored_format import FLOAT, StoredFormat

_ROW = "quantized checkpoint"
_BITS = (4, 8)
_ZERO_ADDED = {"gptq": 1, "gptq_v2": 0}
_AUTO_ROUND: dict[str, IntGroups] = {"auto_gptq": Gptq(), "auto_awq": Awq()}


def read_gptq(config: Mapping[str, Any]) -> StoredModules:
    """Groups of any size, also with desc_act; `dynamic` overrides them by patterns of modules."""
    version = config.get("checkpoint_format") or "gptq"
    if version not in _ZERO_ADDED or config.get("is_marlin_format"):
        raise UnsupportedFormatError(_ROW, f"GPTQ of checkpoint_format {shown(version)}")
    if (words := config.get("pack_dtype") or "int32") != "int32":
        raise UnsupportedFormatError(_ROW, f"GPTQ of pack_dtype {shown(words)}")
    whole = _gptq(config, Gptq(zero_added=_ZERO_ADDED[version]))
    dynamic = config.get("dynamic") or {}
    if not isinstance(dynamic, Mapping):
        raise UnsupportedFormatError(_ROW, f"dynamic {shown(dynamic)}")
    groups = [_override(str(name), given, whole) for name, given in dynamic.items()]
    return StoredModules((*groups, (("Linear",), whole)))


def _override(name: str, given: object, whole: Gptq) -> tuple[tuple[str, ...], StoredFormat]:
    """The modules of a pattern of `dynamic`: "-:" leaves them floats, "+:" or none changes them."""
    pattern = f"re:{name.removeprefix('-:').removeprefix('+:')}"
    check_pattern(pattern, "dynamic")
    if name.startswith("-:"):
        return (pattern,), FLOAT
    if not isinstance(given, Mapping):
        raise UnsupportedFormatError(_ROW, f"dynamic {shown(name)}: {shown(given)}")
    return (pattern,), _gptq(given, whole)


def _gptq(config: Mapping[str, Any], stored: Gptq) -> Gptq:
    """`stored` with what `config` says of it."""
    return replace(
        stored,
        bits=_bits("GPTQ", config.get("bits", stored.bits)),
        group=_group_size("GPTQ", config.get("group_size", stored.group or -1)),
        ordered=bool(config.get("desc_act", stored.ordered)),
    )


def read_awq(config: Mapping[str, Any]) -> StoredModules:
    """4 bits with zero points, in the packing "gemm"."""
    version = config.get("version") or "gemm"
    if not isinstance(version, str) or version.lower() != "gemm":
        raise UnsupportedFormatError(_ROW, f"AWQ of version {shown(version)}")
    bits = config.get("bits", config.get("w_bit", 4))
    if bits != 4:
        raise UnsupportedFormatError(_ROW, f"AWQ of {shown(bits)} bits")
    if not config.get("zero_point", True):
        raise UnsupportedFormatError(_ROW, "AWQ without zero points")
    group = _group_size("AWQ", config.get("group_size", config.get("q_group_size", 128)))
    kept = module_patterns(config, "modules_to_not_convert")
    return StoredModules(((("Linear",), Awq(group=group)),), kept)


def packed_group(name: str, group: Mapping[str, Any]) -> PackQuantized:
    """The format of a group of pack-quantized modules, whose activations are floats."""
    weights = group["weights"]
    if group.get("input_activations") is not None:
        raise UnsupportedFormatError(_ROW, f"{name}: integers with quantised activations")
    if (kind := weights.get("type", "int")) != "int":
        raise UnsupportedFormatError(_ROW, f"{name}: weights of type {shown(kind)}")
    bits = _bits(name, weights.get("num_bits"))
    strategy, size = weights.get("strategy"), weights.get("group_size")
    if strategy == "channel":
        size = -1
    elif strategy != "group":
        raise UnsupportedFormatError(_ROW, f"{name}: integers with strategy {shown(strategy)}")
    symmetric = bool(weights.get("symmetric", True))
    return PackQuantized(bits, _group_size(name, size), symmetric=symmetric)


def read_auto_round(config: Mapping[str, Any]) -> StoredModules:
    """AutoRound, in tensors of GPTQ or AWQ; `extra_config` overrides it by names of modules."""
    packing = str(config.get("packing_format") or "auto_round:auto_gptq")
    kind = packing.removeprefix("auto_round:")
    if kind not in _AUTO_ROUND:
        raise UnsupportedFormatError(_ROW, f"AutoRound of packing_format {shown(packing)}")
    if (numbers := config.get("data_type") or "int") != "int":
        raise UnsupportedFormatError(_ROW, f"AutoRound of data_type {shown(numbers)}")
    whole = _auto_round(config, _AUTO_ROUND[kind])
    extra = config.get("extra_config") or {}
    if not isinstance(extra, Mapping):
        raise UnsupportedFormatError(_ROW, f"extra_config {shown(extra)}")
    groups = [_extra(str(name), given, whole) for name, given in extra.items()]
    return StoredModules((*groups, (("Linear",), whole)))


def _extra(name: str, given: object, whole: IntGroups) -> tuple[tuple[str, ...], StoredFormat]:
    """The modules of an entry of `extra_config`, whose names may be regular expressions."""
    if not isinstance(given, Mapping):
        raise UnsupportedFormatError(_ROW, f"extra_config {shown(name)}: {shown(given)}")
    pattern = name if re.fullmatch(r"[\w.-]+", name) else f"re:{name}"
    check_pattern(pattern, "extra_config")
    bits = given.get("bits", whole.bits)
    if isinstance(bits, int) and bits >= 16:
        return (pattern,), FLOAT
    size = given.get("group_size", whole.group or -1)
    return (pattern,), _auto_round({"bits": bits, "group_size": size}, whole)


def _auto_round(config: Mapping[str, Any], stored: IntGroups) -> IntGroups:
    bits = _bits("AutoRound", config.get("bits"))
    if isinstance(stored, Awq) and bits != 4:
        raise UnsupportedFormatError(_ROW, f"AutoRound of {bits} bits in the packing of AWQ")
    return replace(stored, bits=bits, group=_group_size("AutoRound", config.get("group_size")))


def _bits(name: str, found: object) -> int:
    if not isinstance(found, int) or found not in _BITS:
        raise UnsupportedFormatError(_ROW, f"{name}: integers of {shown(found)} bits")
    return found


def _group_size(name: str, found: object) -> int:
    """The columns of a group; 0 for all of them, which files call -1."""
    if found == -1:
        return 0
    if not isinstance(found, int) or found <= 0 or found % 8:
        raise UnsupportedFormatError(_ROW, f"{name}: groups of {shown(found)} columns")
    return found
