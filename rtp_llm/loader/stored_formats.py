# SPDX-License-Identifier: Apache-2.0
"""The stored format of each module of a checkpoint, with messages on how it is used."""

from __future__ import annotations

import itertools
import logging
import math
import re
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
from rtp_llm.layers.weights.int_targets import CodesTarget
from rtp_llm.layers.weights.interleaved import parts_of
from rtp_llm.layers.weights.mxfp4 import Mxfp4
from rtp_llm.layers.weights.stored_config import StoredModules
from rtp_llm.layers.weights.stored_format import FLOAT, WEIGHT_NAME, StoredFormat
from rtp_llm.loader.quantization_states import with_states
from rtp_llm.models.refusals import refuse

if TYPE_CHECKING:
    from rtp_llm.device import Device
    from rtp_llm.loader.checkpoint import Checkpoint
    from rtp_llm.models.config import ModelConfig

_logger = logging.getLogger("rtp_llm.loader")
_MIB = 2**20
_EMBEDDING = ".embed_tokens"
_OF_ENCODERS = re.compile(r"\.(word|position|token_type)_embeddings(\.|$)")
_ROUTER = re.compile(r"\.mlp\.gate(\.weight)?$")
_EXPERT = re.compile(r"\.experts\.\d+\.")
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
        if found is FLOAT or found.marker != (suffix, entry.dtype):
            unknown.append(name)
        else:
            formats[module] = found.found_among(frozenset(suffixes[module])).found_with(entry.shape)
    if unknown:
        first = min(unknown)
        dtype = str(checkpoint.tensors[first].dtype).removeprefix("torch.")
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        why = "has no quantization_config"
        if config.stored:
            why = "excludes the module, or says that it is stored otherwise"
        found_text = f"{first}{more}: {dtype}, but config.json {why}"
        raise refuse("quantized weights without a format", found_text, config.architecture)
    return with_states(formats, _shaped(checkpoint, formats))


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
            path = f"{names.path(f'model.layers.{layer}.')}{names.experts}.{expert}.{part}"
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
        for suffix, shape in stored.shapes(*stored.rows_and_columns(weight.shape)).items():
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
    sizes: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    kept = kept_bytes(checkpoint, formats, dtype, device)
    for module, stored in formats.items():
        entry = checkpoint.tensors[f"{module}.{stored.marker[0]}"]
        sums = _count(sizes, module, stored, entry.shape, dtype, device)
        sums[2] += sum(kept.get(f"{module}.{suffix}", 0) for suffix in stored.shapes(1, 1))
    text = ""
    for (title, reason), (size, weights, in_memory) in sizes.items():
        of_file, of_memory = (f"{each / _MIB:.1f} MiB" for each in (size, in_memory))
        text += f", {of_file} of {title} "
        text += f"{_grown(weights, dtype)}: {reason}" if reason else "as they are"
        if of_memory != of_file and not reason:
            text += f" ({of_memory} in memory)"
    # Of formats whose activations are quantised here too.
    modules = [name for name, stored in formats.items() if stored.rounds_activations]
    scales = (f"{module}.{scale}" for module in modules for scale in _INPUT_SCALES)
    if any(scale in checkpoint.tensors for scale in scales):
        text += "; stored scales of activations are not used: each token gets its own"
    return text


def kept_bytes(
    checkpoint: Checkpoint,
    formats: Mapping[str, StoredFormat],
    dtype: torch.dtype,
    device: Device,
) -> dict[str, int]:
    """The bytes that each tensor of the checkpoint takes on `device`; scales are counted as they
    are stored, or as nothing where weights become floats."""
    kept = {}
    for name, entry in checkpoint.tensors.items():
        module, suffix = place_of(name, formats)
        stored = formats.get(module)
        if stored is None or suffix not in stored.shapes(1, 1):
            kept[name] = math.prod(entry.loaded_shape) * dtype.itemsize
            continue
        shape = checkpoint.tensors[f"{module}.{stored.marker[0]}"].shape
        is_floats = bool(why_dequantized(module, stored, shape, dtype, device))
        has_weights = suffix == stored.marker[0]
        if is_floats:
            kept[name] = stored.weights_in(entry.shape) * dtype.itemsize if has_weights else 0
        else:
            added = stored.added_bytes(entry.shape, device) if has_weights else 0
            kept[name] = entry.size + added
    return kept


def place_of(name: str, formats: Mapping[str, StoredFormat]) -> tuple[str, str]:
    """The module of a tensor and the rest of its name, such as "weight" or "weight.absmax"."""
    module, _, suffix = name.rpartition(".")
    if module not in formats and module.endswith(f".{WEIGHT_NAME}"):
        module, suffix = module.removesuffix(f".{WEIGHT_NAME}"), f"{WEIGHT_NAME}.{suffix}"
    return module, suffix


def log_dequantized(model: nn.Module, dtype: torch.dtype, device: Device) -> None:
    """Log once how much memory quantised weights take that are kept as floats."""
    sizes: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for name, target in weight_targets(model):
        for kept in parts_of(local_target(target)):
            if isinstance(kept, DequantizingTarget | GgufTarget) or (
                isinstance(kept, CodesTarget) and kept.loads_last
            ):
                _count(sizes, name, kept.stored, kept.shape, dtype, device)
    for (title, reason), (size, weights, _) in sizes.items():
        level = logging.WARNING if reason else logging.INFO
        why = reason or "their layers compute with floats"
        grown = _grown(weights, dtype)
        _logger.log(level, "%.1f MiB of %s %s: %s", size / _MIB, title, grown, why)


def why_dequantized(
    name: str,
    stored: StoredFormat,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: Device,
) -> str:
    """Why the weight of a module, whose `marker` has this shape, becomes floats (see StoredFormat).

    Empty if it does not. `name` may also be a tensor's.
    """
    if _ROUTER.search(name):
        return "routers are floats"
    if _EXPERT.search(name):
        return stored.why_experts_dequantized(dtype, device)
    if _OF_ENCODERS.search(name):
        return "embeddings of encoders are floats"
    is_embedding = _EMBEDDING in name
    of_format = stored.why_embeddings_dequantized if is_embedding else stored.why_dequantized
    why = of_format(dtype, device)
    if not why and not stored.fits(*stored.rows_and_columns(shape), device):
        return "its rows or columns do not fill tiles"
    return why


def _count(
    sizes: dict[tuple[str, str], list[int]],
    name: str,
    stored: StoredFormat,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: Device,
) -> list[int]:
    """Add a tensor's bytes and weights to the sums of its title and the reason, and return them."""
    sums = sizes[stored.title, why_dequantized(name, stored, shape, dtype, device)]
    sums[0] += math.prod(shape) * stored.marker[1].itemsize
    sums[1] += stored.weights_in(shape)
    return sums


def _grown(weights: int, dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    return f"become {weights * dtype.itemsize / _MIB:.1f} MiB of {name} while loading"
