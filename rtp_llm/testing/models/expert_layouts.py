# SPDX-License-Identifier: Apache-2.0
"""Experts of checkpoints stacked in one tensor of a layer, and one by one."""

from __future__ import annotations

import torch
from torch import Tensor

_EXPERTS = ".mlp.experts."
# The end of a tensor's name: of one expert, and of all of them.
_ENDS = {".weight": "", ".weight_scale_inv": "_scale_inv"}


def stack_experts(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights and block scales of each layer's experts in gate_up_proj and down_proj."""
    kept = {name: tensor for name, tensor in tensors.items() if not _is_single(name)}
    for name in tensors:
        for end, of_all in _ENDS.items():
            last = f"0.down_proj{end}"
            if not name.endswith(f"{_EXPERTS}{last}"):
                continue
            start = name.removesuffix(last)
            count = sum(f"{start}{expert}.down_proj{end}" in tensors for expert in range(999))
            gate, up, down = (
                torch.stack([tensors[f"{start}{expert}.{part}{end}"] for expert in range(count)])
                for part in ("gate_proj", "up_proj", "down_proj")
            )
            kept[f"{start}gate_up_proj{of_all}"] = torch.cat([gate, up], dim=1)
            kept[f"{start}down_proj{of_all}"] = down
    return kept


def split_experts(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights of stacked experts one by one."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if _EXPERTS not in name or _is_single(name):
            found[name] = tensor
            continue
        start, _, part = name.rpartition(".")
        gate_up = part == "gate_up_proj"
        names = ("gate_proj", "up_proj") if gate_up else (part,)
        for kind, of_all in zip(names, tensor.chunk(len(names), dim=1), strict=True):
            for expert, weight in enumerate(of_all):
                found[f"{start}.{expert}.{kind}.weight"] = weight.contiguous()
    return found


def _is_single(name: str) -> bool:
    _, found, rest = name.partition(_EXPERTS)
    return bool(found) and rest.partition(".")[0].isdigit()
