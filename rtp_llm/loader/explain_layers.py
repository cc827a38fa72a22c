# SPDX-License-Identifier: Apache-2.0
"""The text of `rtp-llm explain` on each kind of layer: its format, bytes and error."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from rtp_llm.layers import WeightTarget, local_target
from rtp_llm.layers.weights.interleaved import parts_of
from rtp_llm.layers.weights.stored_format import StoredFormat
from rtp_llm.layers.weights.targets import Quantizes
from rtp_llm.loader.checkpoint import Checkpoint
from rtp_llm.loader.read_tensor import read_numbers
from rtp_llm.loader.stored_formats import kept_bytes, place_of, why_dequantized
from rtp_llm.loader.tensor_entry import TensorEntry

if TYPE_CHECKING:
    from rtp_llm.device import Device

_MIB = 2**20
# The first that a name matches.
_KINDS = (
    ("embedding", r"\.embed_tokens\.|embeddings\.(?!LayerNorm\.)"),
    ("logits head", r"^lm_head\."),
    ("norms", r"(?i)norm\w*\."),
    ("routers", r"\.(mlp|block_sparse_moe)\.(gate|router)\."),
    ("shared experts", r"\.shared_expert(s|_gate)?\."),
    ("experts", r"\.experts\."),
    ("linear attention", r"\.linear_attn\."),
    ("attention", r"attn\.|\.attention\."),
    ("MLP", r"\.mlp\.|\.(intermediate|output)\.dense\."),
    ("other weights", r""),
)
# The error is that of so many rows (a multiple of FP8's blocks) of so many tensors.
_ROWS, _TENSORS = 128, 4


@dataclass
class _Sum:
    """All tensors of a kind in one format; `sampled`: some that are quantised, with targets."""

    size: int = 0
    sampled: list[tuple[TensorEntry, Quantizes]] = field(default_factory=list)


def explain_layers(
    checkpoint: Checkpoint,
    formats: Mapping[str, StoredFormat],
    targets: Mapping[str, Sequence[WeightTarget]],
    quantization: str,
    dtype: torch.dtype,
    device: Device,
) -> list[str]:
    """A line for each kind of layer and format. `targets`: those of a planned model, by name.

    Reads a few rows of the weights that are quantised while loading, for their relative error.
    """
    sums: dict[tuple[str, str], _Sum] = defaultdict(_Sum)
    floats = str(dtype).removeprefix("torch.")
    kept = kept_bytes(checkpoint, formats, dtype, device)
    for name, entry in checkpoint.tensors.items():
        if name not in targets:
            continue
        module, suffix = place_of(name, formats)
        stored = formats.get(module)
        quantized = _quantizing(targets[name][0])
        if stored is not None and suffix in stored.shapes(1, 1):
            shape = checkpoint.tensors[f"{module}.{stored.marker[0]}"].shape
            is_floats = bool(why_dequantized(module, stored, shape, dtype, device))
            how = f"{stored.title} as {floats}" if is_floats else f"{stored.title} as stored"
        else:
            how = quantization if quantized else floats
        found = sums[_kind(name), how]
        found.size += sum(each.stored_bytes for each in quantized) if quantized else kept[name]
        if quantized and entry.dtype.is_floating_point and len(found.sampled) < _TENSORS:
            found.sampled.append((entry, quantized[0]))
    return [
        f"  {kind}: {each.size / _MIB:.1f} MiB of {how}{_error_of(how, each.sampled)}"
        for kind, how, each in _in_order(sums)
    ]


def _kind(name: str) -> str:
    return next(kind for kind, pattern in _KINDS if re.search(pattern, name))


def _in_order(sums: Mapping[tuple[str, str], _Sum]) -> Iterator[tuple[str, str, _Sum]]:
    for wanted, _ in _KINDS:
        yield from ((kind, how, each) for (kind, how), each in sums.items() if kind == wanted)


def _quantizing(target: WeightTarget) -> list[Quantizes]:
    """The targets inside that quantise floats; empty if there are none."""
    return [each for each in parts_of(local_target(target)) if isinstance(each, Quantizes)]


def _error_of(how: str, sampled: Sequence[tuple[TensorEntry, Quantizes]]) -> str:
    """The root of the mean squared error by that of the weights, of the sampled rows."""
    if not sampled:
        return ", error unknown" if " as " in how else ""
    lost = total = 0.0
    for entry, target in sampled:
        columns = entry.shape[-1]
        rows = min(_ROWS, entry.shape[0])
        numbers = read_numbers(entry, count=rows * columns).view(rows, columns).float()
        lost += float((target.rounded(numbers) - numbers).double().square().sum())
        total += float(numbers.double().square().sum())
    return f", relative error {100 * (lost / total) ** 0.5 if total else 0:.2g}%"
