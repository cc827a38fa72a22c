# SPDX-License-Identifier: Apache-2.0
"""What `rtp-llm explain` says about a GGUF file."""

from __future__ import annotations

from collections import defaultdict

from rtp_llm.gguf.model import GgufModel
from rtp_llm.model_folder import name_of

_MIB = 2**20
_NAME = "general.name"


def describe(model: GgufModel) -> list[str]:
    """Lines for the user: the model, then each tensor type with its share, largest first."""
    sizes: dict[str, int] = defaultdict(int)
    counts: dict[str, int] = defaultdict(int)
    refused: dict[str, str] = {}
    for tensor in model.tensors.values():
        sizes[tensor.type.name] += tensor.size
        counts[tensor.type.name] += 1
        if tensor.type.why_refused:
            refused[tensor.type.name] = tensor.type.why_refused
    lines = [_headline(model)]
    for kind in sorted(sizes, key=lambda each: -sizes[each]):
        why = f"; cannot be used: {refused[kind]}" if kind in refused else ""
        tensors = _plural(counts[kind], "tensor")
        lines.append(f"  {kind}: {tensors}, {sizes[kind] / _MIB:.1f} MiB{why}")
    return lines


def _headline(model: GgufModel) -> str:
    weights = model.num_weights
    name = model.metadata.text(_NAME)
    title = name_of(model.metadata.architecture) + (f" ({name_of(name)})" if name else "")
    text = f"{title} in {_plural(len(model.files), 'GGUF file')}: {_plural(weights, 'weight')}"
    if not weights:
        return text
    bits = 8 * model.num_bytes / weights
    return f"{text} in {model.num_bytes / _MIB:.1f} MiB, {bits:.2f} bits each"


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
