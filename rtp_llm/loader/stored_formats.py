# SPDX-License-Identifier: Apache-2.0
"""The stored format of each module of a checkpoint, with messages on how it is used."""

from __future__ import annotations

import itertools
import logging
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from rtp_llm.layers import local_target, weight_targets
from rtp_llm.layers.weights.fp8_formats import Fp8Format
from rtp_llm.layers.weights.fp8_targets import DequantizingTarget
from rtp_llm.layers.weights.gguf_blocks import GgufTarget
from rtp_llm.layers.weights.interleaved import parts_of
from rtp_llm.layers.weights.mxfp4 import Mxfp4
from rtp_llm.layers.weights.stored_config import StoredModules
from rtp_llm.layers.weights.stored_format import FLOAT, StoredFormat
from rtp_llm.models.refusals import refuse

if TYPE_CHECKING:
    from rtp_llm.device import Device
    from rtp_llm.loader.checkpoint import Checkpoint
    from rtp_llm.models.config import ModelConfig

_logger = logging.getLogger("rtp_llm.loader")
_MIB = 2**20
_INPUT_SCALES = ("input_scale", "activation_scale")


def stored_formats(
    config: ModelConfig, checkpoint: Checkpoint
) -> tuple[dict[str, StoredFormat], Checkpoint]:
    """The format of each module whose weight is not a float tensor, and the checkpoint.

    Scales get the shapes of their format: files also hold [N] or [] for [N, 1] or [1].
    Raises UnsupportedModelError if config.json does not say how such a weight is stored.
    """
    if checkpoint.formats:
        return dict(checkpoint.formats), checkpoint
    stored = config.stored or StoredModules(())
    suffixes: dict[str, set[str]] = defaultdict(set)
    for name in checkpoint.tensors:
        module, _, suffix = name.rpartition(".")
        suffixes[module].add(suffix)
    markers = {Fp8Format.marker} | {each.marker for each in stored.formats}
    formats: dict[str, StoredFormat] = {}
    unknown: list[str] = []
    for name, entry in checkpoint.tensors.items():
        module, _, suffix = name.rpartition(".")
        if (suffix, entry.dtype) not in markers:
            continue
        found = stored.format_of(module)
        if found is FLOAT:
            unknown.append(name)
        else:
            formats[module] = found.found_among(frozenset(suffixes[module]))
    if unknown:
        why = "modules that it ignores" if config.stored else "no quantization_config"
        found_text = f"{min(unknown)} and {len(unknown) - 1} more, but {why} in config.json"
        raise refuse("8-bit floats without blocks", found_text, config.architecture)
    return formats, _shaped(checkpoint, formats)


def declared_experts(config: ModelConfig) -> dict[str, StoredFormat]:
    """The formats of a model's experts as its config.json says, if they are in MXFP4; else empty.

    Without a checkpoint: of dummy weights.
    """
    stored = config.stored
    if config.moe is None or stored is None or not any(map(_is_mxfp4, stored.formats)):
        return {}
    names, formats = config.moe.names, {}
    for layer, expert in itertools.product(range(config.num_layers), range(config.moe.num_experts)):
        for part in (names.gate_up_proj, names.down_proj):
            path = f"model.layers.{layer}.{names.block}.{names.experts}.{expert}.{part}"
            formats[path] = stored.format_of(path)
    return {path: each for path, each in formats.items() if _is_mxfp4(each)}


def _is_mxfp4(stored: StoredFormat) -> bool:
    return isinstance(stored, Mxfp4)


def _shaped(checkpoint: Checkpoint, formats: Mapping[str, StoredFormat]) -> Checkpoint:
    """Give tensors of a format its shapes where the files have other numbers of axes."""
    tensors = dict(checkpoint.tensors)
    for module, stored in formats.items():
        weight = tensors.get(f"{module}.{stored.marker[0]}")
        if weight is None or len(weight.shape) != 2:
            continue
        for suffix, shape in stored.shapes(*weight.shape).items():
            entry = tensors.get(f"{module}.{suffix}")
            if entry is not None and _is_same(entry.shape, shape):
                tensors[entry.name] = replace(entry, shape=shape)
    return replace(checkpoint, tensors=tensors)


def _is_same(found: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether two shapes have different numbers of axes and differ in axes of one entry only."""
    left, right = ([size for size in each if size != 1] for each in (found, shape))
    return len(found) != len(shape) and left == right


def describe(
    checkpoint: Checkpoint,
    formats: Mapping[str, StoredFormat],
    dtype: torch.dtype,
    device: Device,
) -> str:
    """The text of `rtp-llm explain` on weights that are not floats; empty if there are none."""
    sizes: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for module, stored in formats.items():
        entry = checkpoint.tensors[f"{module}.{stored.marker[0]}"]
        _count(sizes, stored, entry.shape, dtype, device)
    text = ""
    for (title, reason), (size, weights) in sizes.items():
        text += f", {size / _MIB:.1f} MiB of {title} "
        text += f"{_grown(weights, dtype)}: {reason}" if reason else "as they are"
    scales = (f"{module}.{scale}" for module in formats for scale in _INPUT_SCALES)
    if any(scale in checkpoint.tensors for scale in scales):
        text += "; stored scales of activations are not used: each token gets its own"
    return text


def log_dequantized(model: nn.Module, dtype: torch.dtype, device: Device) -> None:
    """Log once how much memory quantised weights take that are kept as floats."""
    sizes: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for _, target in weight_targets(model):
        for kept in parts_of(local_target(target)):
            if isinstance(kept, DequantizingTarget | GgufTarget):
                _count(sizes, kept.stored, kept.shape, dtype, device)
    for (title, reason), (size, weights) in sizes.items():
        level = logging.WARNING if reason else logging.INFO
        why = reason or "their layers compute with floats"
        grown = _grown(weights, dtype)
        _logger.log(level, "%.1f MiB of %s %s: %s", size / _MIB, title, grown, why)


def _count(
    sizes: dict[tuple[str, str], list[int]],
    stored: StoredFormat,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: Device,
) -> None:
    """Add a tensor's bytes and weights to those of its title and the reason for floats."""
    sums = sizes[stored.title, stored.why_dequantized(dtype, device)]
    sums[0] += math.prod(shape)
    sums[1] += stored.weights_in(shape)


def _grown(weights: int, dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    return f"become {weights * dtype.itemsize / _MIB:.1f} MiB of {name} while loading"
