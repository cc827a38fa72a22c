# SPDX-License-Identifier: Apache-2.0
"""What `quantization_config` says about the stored formats of a checkpoint's modules."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rtp_llm.device.choice import load_class
from rtp_llm.layers.weights.stored_format import FLOAT, StoredFormat

# quant_method -> the function that reads it, imported when a config.json names it.
METHODS = {
    "fp8": "rtp_llm.layers.weights.fp8_config:read_fp8",
    "fbgemm_fp8": "rtp_llm.layers.weights.fp8_config:read_fbgemm_fp8",
    "compressed-tensors": "rtp_llm.layers.weights.compressed_tensors:read_compressed_tensors",
    "mxfp4": "rtp_llm.layers.weights.mxfp4:read_mxfp4",
    "bitsandbytes": "rtp_llm.layers.weights.stored.bitsandbytes:read_bitsandbytes",
    "mlx": "rtp_llm.layers.weights.stored.mlx:read_mlx",
    "modelopt": "rtp_llm.layers.weights.stored.modelopt:read_modelopt",
    "modelopt_fp4": "rtp_llm.layers.weights.stored.modelopt:read_modelopt",
    "modelopt_mixed": "rtp_llm.layers.weights.stored.modelopt:read_modelopt",
}
# Of config.json: all of the formats' makers, of old compressed-tensors, and of MLX.
KEYS = ("quantization_config", "compression_config", "quantization")
_REGEX = "re:"
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
    those of groups.
    """

    groups: tuple[tuple[tuple[str, ...], StoredFormat], ...]
    ignored: tuple[str, ...] = ()
    unused: frozenset[str] = frozenset()
    named: Mapping[str, StoredFormat] = field(default_factory=dict)

    @property
    def formats(self) -> tuple[StoredFormat, ...]:
        """All formats that modules may have, besides floats."""
        grouped = (stored for _, stored in self.groups)
        return tuple(each for each in (*grouped, *self.named.values()) if each is not FLOAT)

    def format_of(self, module: str) -> StoredFormat:
        """The format of `module`, unless its tensors turn out to be floats."""
        if any(_matches(pattern, module) for pattern in self.ignored):
            return FLOAT
        if (stored := self.named.get(module)) is not None:
            return stored
        for patterns, stored in self.groups:
            if any(pattern == "Linear" or _matches(pattern, module) for pattern in patterns):
                return stored
        return FLOAT

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
    return read(found)


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


def _matches(pattern: str, module: str) -> bool:
    """Whether `pattern` is the module, its last names, a module around it, or a regex for it."""
    if pattern.startswith(_REGEX):
        return re.match(pattern.removeprefix(_REGEX), module) is not None
    return f".{module}.".find(f".{pattern}.") >= 0
