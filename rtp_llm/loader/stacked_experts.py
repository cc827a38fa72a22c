# SPDX-License-Identifier: Apache-2.0
"""Presents experts that a checkpoint stacks in one tensor as one tensor per expert.

transformers 5 computes with `experts.gate_up_proj` [E, 2 I, K] and `experts.down_proj` [E, K, I],
and saves them that way with save_original_format=False; in FP8, `..._scale_inv` next to them holds
the block scales. gpt-oss has its experts in these tensors, too, but transposed and with the rows of
gate and up alternating; in MXFP4 each becomes `..._blocks` and `..._scales`, which are not
transposed. Its experts have biases, `..._bias`. Granite calls the same two tensors `input_linear`
and `output_linear`. MLX stacks each part, `switch_mlp.gate_proj`, with
all tensors that a quantised weight has.

The rows of one expert are contiguous, so each expert's tensor is a byte range of the file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from rtp_llm.layers.weights.fp8_formats import SCALE_NAMES
from rtp_llm.layers.weights.mxfp4 import BLOCKS, SCALES
from rtp_llm.layers.weights.stored_format import BIAS_NAME, WEIGHT_NAME
from rtp_llm.loader.safetensors_header import CheckpointError
from rtp_llm.loader.tensor_entry import TensorEntry
from rtp_llm.models.config_fields import MAX_EXPERTS
from rtp_llm.quantization.fp8 import padded

# Name suffixes -> the parts concatenated in the rows of an expert.
_STACKED = {
    ".experts.gate_up_proj": ("gate_proj", "up_proj"),
    ".experts.down_proj": ("down_proj",),
}
_GRANITE = {
    ".input_linear.weight": ".experts.gate_up_proj",
    ".output_linear.weight": ".experts.down_proj",
}
_SCALES = "_scale_inv"
_MLX = ".switch_mlp."
# What the names of tensors of gpt-oss have after that of the stacked weight.
_ENDS = tuple(f"_{suffix}" for suffix in (BIAS_NAME, BLOCKS, SCALES))


def split_experts(tensors: dict[str, TensorEntry]) -> dict[str, TensorEntry]:
    """Replace each stacked tensor by "experts.NUMBER.PART.weight" for every expert and part.

    Scales become "....weight_scale_inv". The order of the tensors is kept.
    """
    found: dict[str, TensorEntry] = {}
    for entry in tensors.values():
        for part in _parts(entry, tensors):
            if part.name in found:
                raise CheckpointError(f"{entry.file}: {entry.name} holds {part.name} once more")
            found[part.name] = part
    return found


def _can_split(entry: TensorEntry, parts: int) -> bool:
    """Whether an expert's rows split into `parts` parts and the number of experts is plausible."""
    return entry.shape[0] <= MAX_EXPERTS and entry.shape[1] % parts == 0


def _has_whole_blocks(weight: TensorEntry | None, parts: int) -> bool:
    """Whether each of an expert's `parts` begins at a block boundary of the scaled weight."""
    if weight is None or len(weight.shape) != 3:
        return False
    rows = weight.shape[1] // parts
    return padded(rows) == rows


def _of_mlx(entry: TensorEntry) -> Iterator[TensorEntry]:
    """Each expert's share of a tensor of MLX, weights or what belongs to them."""
    experts, *shape = entry.shape
    size = entry.size // max(1, experts)
    for expert in range(experts):
        name = entry.name.replace(_MLX, f".experts.{expert}.")
        yield replace(entry, name=name, shape=tuple(shape), offset=entry.offset + expert * size)


def _parts(entry: TensorEntry, tensors: Mapping[str, TensorEntry]) -> Iterator[TensorEntry]:
    if _MLX in entry.name and len(entry.shape) == 3 and entry.shape[0] <= MAX_EXPERTS:
        yield from _of_mlx(entry)
        return
    if (stem := _alternating(entry, tensors)) is not None:
        yield from _whole(entry, stem)
        return
    stem = entry.name.removesuffix(_SCALES)
    for end, standard in _GRANITE.items():
        if stem.endswith(end) and len(entry.shape) == 3:
            stem = stem.removesuffix(end) + standard
    names = next((_STACKED[end] for end in _STACKED if stem.endswith(end)), ())
    if not names or len(entry.shape) != 3 or not _can_split(entry, len(names)):
        yield entry
        return
    scales = entry.name.endswith(_SCALES)
    if scales and len(names) > 1 and not _has_whole_blocks(tensors.get(stem), len(names)):
        yield entry
        return
    experts, rows, columns = entry.shape
    shape = (rows // len(names), columns)
    path, offset = stem.rpartition(".")[0], entry.offset
    kind = SCALE_NAMES[0] if scales else WEIGHT_NAME
    for expert in range(experts):
        for name in names:
            made = replace(entry, name=f"{path}.{expert}.{name}.{kind}", shape=shape, offset=offset)
            yield made
            offset += made.size


def _alternating(entry: TensorEntry, tensors: Mapping[str, TensorEntry]) -> str | None:
    """The name of gpt-oss' stacked weight that `entry` is a tensor of; None: it is not."""
    stem = next((entry.name.removesuffix(end) for end in _ENDS if entry.name.endswith(end)), "")
    stem = stem or entry.name
    known = stem.endswith(tuple(_STACKED)) and f"{stem}_{BIAS_NAME}" in tensors
    return stem if known and 2 <= len(entry.shape) <= 4 and entry.shape[0] <= MAX_EXPERTS else None


def _whole(entry: TensorEntry, stem: str) -> Iterator[TensorEntry]:
    """Each expert's share of `entry`, of all parts together; the pairs of a row form one axis."""
    (path, _, name), suffix = stem.rpartition("."), entry.name[len(stem) + 1 :] or WEIGHT_NAME
    experts, *rest = entry.shape
    shape = (rest[0], math.prod(rest[1:])) if len(rest) > 1 else tuple(rest)
    size = entry.size // max(1, experts)
    for expert in range(experts):
        named = f"{path}.{expert}.{name}.{suffix}"
        yield replace(entry, name=named, shape=shape, offset=entry.offset + expert * size)
