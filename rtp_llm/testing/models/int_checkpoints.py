# SPDX-License-Identifier: Apache-2.0
"""Turns folders of models into GPTQ, AWQ or packed integers, as published checkpoints are."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from rtp_llm.layers.weights.int_formats import Awq, Gptq, IntGroups, PackQuantized
from rtp_llm.ops.gemm.int_groups import groups_in_order
from rtp_llm.testing.models.stored_checkpoints import projections

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def packed(codes: Tensor, bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """Words of the second axis of `codes` [A, B], whole words: int32 [A, B x bits / 32]."""
    count = 32 // bits
    words = codes.to(torch.int64).view(len(codes), -1, count)
    total = torch.zeros(words.shape[:2], dtype=torch.int64)
    for place, column in enumerate(order or range(count)):
        total |= words[..., column] << (bits * place)
    return total.to(torch.int32)


def tensors_of(
    stored: IntGroups, codes: Tensor, zeros: Tensor, scales: Tensor, group_of: Tensor
) -> dict[str, Tensor]:
    """The tensors of codes [N, K], zero points and scales [N, groups], and groups [K]."""
    bits = stored.bits
    if isinstance(stored, PackQuantized):
        tensors = {"weight_packed": packed(codes, bits), "weight_scale": scales}
        if not stored.symmetric:
            tensors["weight_zero_point"] = packed(zeros.T, bits).T.contiguous()
        return {**tensors, "weight_g_idx": group_of.int()} if stored.ordered else tensors
    tensors = {"scales": scales.T.contiguous()}
    if isinstance(stored, Awq):
        qweight, qzeros = (packed(each.T, bits, AWQ_ORDER) for each in (codes, zeros))
        return {**tensors, "qweight": qweight, "qzeros": qzeros}
    assert isinstance(stored, Gptq)
    top = (1 << bits) - 1
    return {
        **tensors,
        "qweight": packed(codes, bits).T.contiguous(),
        "qzeros": packed((zeros.T - stored.zero_added) & top, bits),
        "g_idx": group_of.int(),
    }


def quantize(stored: IntGroups, weight: Tensor, seed: int = 0) -> tuple[dict[str, Tensor], Tensor]:
    """The tensors of `weight` [N, K], rounded to nearest, and the float32 weight of those.

    Columns are in groups in a random order if `stored` is ordered.
    """
    rows, columns = weight.shape
    group_of = groups_in_order(columns, stored.group)
    if stored.ordered:
        group_of = group_of[torch.randperm(columns, generator=torch.Generator().manual_seed(seed))]
    top = (1 << stored.bits) - 1
    shape = rows, stored.groups(columns)
    places = group_of.expand(rows, columns)
    low, high = (
        torch.zeros(shape).scatter_reduce(1, places, weight.float(), kind)
        for kind in ("amin", "amax")
    )
    if isinstance(stored, PackQuantized) and stored.symmetric:
        high = torch.maximum(-low, high)
        low = -high
    scales = ((high - low) / top).half()
    zeros = (-low / scales).round().clamp(1, top).long()
    if isinstance(stored, PackQuantized) and stored.symmetric:
        zeros = torch.full_like(zeros, (top + 1) // 2)
    codes = (weight / scales[:, group_of] + zeros[:, group_of]).round().clamp(0, top).long()
    exact = scales.float()[:, group_of] * (codes - zeros[:, group_of])
    return tensors_of(stored, codes, zeros, scales, group_of), exact


def store_as_integers(
    folder: Path, config: dict[str, Any], stored: IntGroups, dtype: torch.dtype
) -> Path:
    """Turn the projections in the one weight file of `folder` into `stored`; others have `dtype`.

    `config` is the quantization_config. The returned folder holds the same model as floats.
    """
    wide = folder.with_name(f"{folder.name}-wide")
    shutil.copytree(folder, wide)
    written, kept = {}, {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if not projections(name):
            written[name] = kept[name] = tensor.to(dtype)
            continue
        tensors, exact = quantize(stored, tensor)
        module = name.removesuffix("weight")
        written |= {f"{module}{suffix}": each for suffix, each in tensors.items()}
        if isinstance(stored, PackQuantized):
            written[f"{module}weight_shape"] = torch.tensor(tensor.shape)
        kept[name] = exact.to(dtype)
    save_file(written, folder / "model.safetensors", {"format": "pt"})
    save_file(kept, wide / "model.safetensors", {"format": "pt"})
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, "quantization_config": config}))
    return wide
