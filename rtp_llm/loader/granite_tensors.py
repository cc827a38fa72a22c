# SPDX-License-Identifier: Apache-2.0
"""Presents the MLP that every token of Granite 4 goes through under the names of other models.

`shared_mlp.input_linear` [2 I, K] is both gate and up, and `output_linear` what comes after.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rtp_llm.loader.tensor_entry import TensorEntry

_BOTH, _OUT = ".shared_mlp.input_linear.weight", ".shared_mlp.output_linear.weight"


def granite_tensors(tensors: dict[str, TensorEntry]) -> dict[str, TensorEntry]:
    """Split and rename the shared MLP; split_experts knows the names of the experts."""
    return {each.name: each for entry in tensors.values() for each in _renamed(entry)}


def _renamed(entry: TensorEntry) -> Iterator[TensorEntry]:
    name, shape = entry.name, entry.shape
    if name.endswith(_BOTH) and len(shape) == 2 and shape[0] % 2 == 0:
        stem, half = name.removesuffix(_BOTH), (shape[0] // 2, shape[1])
        gate = replace(entry, name=f"{stem}.mlp.gate_proj.weight", shape=half)
        yield gate
        yield replace(gate, name=f"{stem}.mlp.up_proj.weight", offset=gate.offset + gate.size)
        return
    if name.endswith(_OUT):
        entry = replace(entry, name=f"{name.removesuffix(_OUT)}.mlp.down_proj.weight")
    yield entry
