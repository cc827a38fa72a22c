# SPDX-License-Identifier: Apache-2.0
"""What `quantization_config` says about the stored formats of a checkpoint's modules."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from rtp_llm.device.choice import load_class
from rtp_llm.layers.weights.stored_format import FLOAT, StoredFormat

# quant_method -> the function that reads it, imported when a config.json names it.
METHODS = {
    "fp8": "rtp_llm.layers.weights.fp8_config:read_fp8",
    "fbgemm_fp8": "rtp_llm.layers.weights.fp8_config:read_fbgemm_fp8",
    "compressed-tensors": "rtp_llm.layers.weights.compressed_tensors:read_compressed_tensors",
    "gptq": "rtp_llm.layers.weights.int_config:read_gptq",
    "auto-round": "rtp_llm.layers.weights.int_config:read_auto_round",
    "intel/auto-round": "rtp_llm.layers.weights.int_config:read_auto_round",
    "awq": "rtp_llm.layers.weights.int_config:read_awq",
    "mxfp4": "rtp_llm.layers.weights.mxfp4:read_mxfp4",
    "bitsandbytes": "rtp_llm.layers.weights.stored.bitsandbytes:read_bitsandbytes",
    "mlx": "rtp_llm.layers.weights.stored.mlx:read_mlx",
    "modelopt": "rtp_llm.layers.weights.stored.modelopt:read_modelopt",
    "modelopt_fp4": "rtp_llm.layers.weights.stored.modelopt:read_modelopt",
    "modelopt_mixed": "rtp_llm.layers.weights.stored.modelopt:read_modelopt",
}
# Of config.json: all of the formats' makers, of old compressed-tensors, and of MLX.
KEYS = ("quantization_config", "compression_config", "quantization")
CACHE_SCHEME, CACHE_ALGORITHM = "kv_cache_scheme", "kv_cache_quant_algo"
_REGEX = "re:"
_MODEL = "model."
_MAX_SHOWN = 80


class UnsupportedFormatError(ValueError):
    """A quantization_config that is refused: the row of config/refusals.py and what was found."""

    def __init__(self, row: str, found: str) -> None:
        super().__init__(f"{row}: {found}")
        self.row, self.found = row, found


@dataclass(frozen=True)
class StoredModules:
    """The stored format of each module, by its name without "weight".

    `groups`: (patterns of modules, format), of which the first that matches counts; "Linear" is
    every module. `ignored`: patterns of modules that stay floats. Tensors whose names end in one of
    `unused` are known and not read. `named`: the formats of single modules, which count before
    those of groups. Of a text part, files and patterns may have one of `prefixes` instead of
    "model."; modules are asked for with "model.". `cached`: the numbers in which the checkpoint
    wants keys and values to be cached, such as "fp8"; empty: it says nothing.
    """

    groups: tuple[tuple[tuple[str, ...], StoredFormat], ...]
    ignored: tuple[str, ...] = ()
    unused: frozenset[str] = frozenset()
    named: Mapping[str, StoredFormat] = field(default_factory=dict)
    prefixes: tuple[str, ...] = ()
    cached: str = ""

    @property
    def formats(self) -> tuple[StoredFormat, ...]:
        """All formats that modules may have, besides floats."""
        grouped = (stored for _, stored in self.groups)
        return tuple(each for each in (*grouped, *self.named.values()) if each is not FLOAT)

    def format_of(self, module: str) -> StoredFormat:
        """The format of `module`, unless its tensors turn out to be floats."""
        names = self._names(module)
        if self._ignored.match(names):
            return FLOAT
        named = (self.named[name] for name in names if name in self.named)
        grouped = (stored for patterns, stored in self._grouped if patterns.match(names))
        return next(itertools.chain(named, grouped), FLOAT)

    def _names(self, module: str) -> tuple[str, ...]:
        if not module.startswith(_MODEL):
            return (module,)
        inside = module.removeprefix(_MODEL)
        return (module, *(f"{prefix}{inside}" for prefix in self.prefixes))

    @cached_property
    def _ignored(self) -> _Patterns:
        return _Patterns(self.ignored, self.prefixes)

    @cached_property
    def _grouped(self) -> list[tuple[_Patterns, StoredFormat]]:
        return [(_Patterns(patterns, self.prefixes), stored) for patterns, stored in self.groups]

    def ignores(self, tensor: str) -> bool:
        """Whether the tensor of that name belongs to a format and is not read."""
        return tensor.rpartition(".")[2] in self.unused


def read_stored_modules(config: Mapping[str, Any]) -> StoredModules | None:
    """Read the quantization_config of a config.json; None without one.

    Raises UnsupportedFormatError for what is not supported.
    """
    found = next((config[key] for key in KEYS if config.get(key)), None)
    if not found:
        return None
    if not isinstance(found, Mapping):
        raise UnsupportedFormatError("quantized checkpoint", f"quant_method {shown(found)}")
    method = found.get("quant_method", "mlx" if "bits" in found else None)  # MLX has none
    if not isinstance(method, str) or method not in METHODS:
        raise UnsupportedFormatError("quantized checkpoint", f"quant_method {shown(method)}")
    read: Callable[[Mapping[str, Any]], StoredModules] = load_class(METHODS[method])
    return replace(read(found), cached=_cached(found))


def _cached(config: Mapping[str, Any]) -> str:
    """What `kv_cache_scheme` or ModelOpt's `kv_cache_quant_algo` says; see StoredModules."""
    given = config.get("quantization", config)
    if isinstance(given, Mapping) and isinstance(algorithm := given.get(CACHE_ALGORITHM), str):
        return algorithm.lower()
    scheme = config.get(CACHE_SCHEME)
    if not isinstance(scheme, Mapping):
        return ""
    bits, kind = scheme.get("num_bits"), scheme.get("type", "float")
    return "fp8" if (bits, kind) == (8, "float") else f"{shown(kind)} of {shown(bits)} bits"


def shown(value: object) -> str:
    """A value of config.json for a message, shortened."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."


def module_patterns(config: Mapping[str, Any], *keys: str) -> tuple[str, ...]:
    """The lists of modules under `keys`, together. Raises UnsupportedFormatError if malformed."""
    found: list[str] = []
    for key in keys:
        listed = config.get(key) or []
        if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
            raise UnsupportedFormatError("quantized checkpoint", f"{key} is not a list of names")
        for pattern in listed:
            check_pattern(pattern, key)
        found += listed
    return tuple(found)


def check_pattern(pattern: str, key: str) -> None:
    """Raise UnsupportedFormatError unless a pattern of the list `key` can be used."""
    if pattern.startswith(_REGEX):
        try:
            re.compile(pattern.removeprefix(_REGEX))
        except re.error as error:
            found = f"{key} has the pattern {shown(pattern)}: {error}"
            raise UnsupportedFormatError("quantized checkpoint", found) from error


class _Patterns:
    """Names of modules, of their last parts or of modules around them, "Linear", and regexes.

    Checkpoints list hundreds and have tens of thousands of experts.
    """

    def __init__(self, patterns: Sequence[str], prefixes: Sequence[str]) -> None:
        self._all = "Linear" in patterns
        regexes = [each for each in patterns if each.startswith(_REGEX)]
        self._regexes = [re.compile(each.removeprefix(_REGEX)) for each in regexes]
        names = set(patterns).difference(regexes)
        for prefix in prefixes:
            of_text = [name for name in names if name.startswith(prefix)]
            names.update(f"{_MODEL}{name.removeprefix(prefix)}" for name in of_text)
        self._listed = frozenset(names)

    def match(self, names: Sequence[str]) -> bool:
        """Whether a pattern is for the module, which has these names; "model." is in the first."""
        if self._all:
            return True
        parts = names[0].split(".")
        ends = range(1, len(parts) + 1)
        around = (".".join(parts[begin:end]) for end in ends for begin in range(end))
        if self._listed and not self._listed.isdisjoint(around):
            return True
        return any(regex.match(name) for regex in self._regexes for name in names)
