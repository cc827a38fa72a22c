# SPDX-License-Identifier: Apache-2.0
"""Reads what bitsandbytes stores next to each 4-bit weight: its shape, tables and nested scales."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from rtp_llm.layers.weights.stored.bitsandbytes import ABSMAX, STATE, Bnb4, NestedScales
from rtp_llm.layers.weights.stored_format import WEIGHT_NAME, StoredFormat
from rtp_llm.loader.checkpoint import Checkpoint, CheckpointError, TensorEntry
from rtp_llm.loader.read_tensor import read_numbers

_CODES = 16
_BYTES = 256
_MAX_STATE = 4096


def with_states(
    formats: Mapping[str, StoredFormat], checkpoint: Checkpoint
) -> tuple[dict[str, StoredFormat], Checkpoint]:
    """Complete the formats of bitsandbytes' 4-bit weights, and give their tensors two axes.

    Reads about one byte for each 4,096 weights. Raises CheckpointError for a malformed state.
    """
    made, tensors = dict(formats), dict(checkpoint.tensors)
    for module, stored in formats.items():
        if isinstance(stored, Bnb4):
            try:
                made[module] = _completed(module, tensors)
            except (ArithmeticError, LookupError, TypeError, ValueError) as error:
                if isinstance(error, CheckpointError):
                    raise
                raise CheckpointError(
                    f"{module}: the quantisation state of bitsandbytes cannot be used: {error!r}"
                ) from error
    return made, replace(checkpoint, tensors=tensors)


def _completed(module: str, tensors: dict[str, TensorEntry]) -> Bnb4:
    name = f"{module}.{WEIGHT_NAME}"
    kind, state = _state(name, tensors)
    rows, columns = state["shape"]
    block = state["blocksize"]
    if min(rows, columns, block) <= 0 or columns % block or block % 2:
        raise CheckpointError(
            f"{name} is [{rows}, {columns}] in blocks of {block}, which are no whole parts of rows"
        )
    table = _numbers(tensors[f"{name}.quant_map"], _CODES)
    absmax = tensors[f"{module}.{ABSMAX}"]
    count = rows * (columns // block)
    nested = _nested(name, state, count, tensors) if absmax.dtype is torch.uint8 else None
    stored = Bnb4(kind, table, block, nested, columns)
    for suffix, shape in stored.shapes(rows, columns).items():
        entry = tensors[f"{module}.{suffix}"]
        made = replace(entry, shape=shape)
        if made.size != entry.size:
            raise CheckpointError(f"{entry.name} is {list(entry.shape)}, not {list(shape)} in all")
        tensors[entry.name] = made
    return stored


def _state(name: str, tensors: Mapping[str, TensorEntry]) -> tuple[str, dict[str, Any]]:
    """The kind and the values of a weight's state, which are JSON in a tensor of bytes."""
    for kind in ("nf4", "fp4"):
        entry = tensors.get(f"{name}.quant_state.{STATE}{kind}")
        if entry is not None:
            if entry.size > _MAX_STATE:
                raise CheckpointError(f"{entry.name} has {entry.size} bytes")
            values: dict[str, Any] = json.loads(read_numbers(entry).numpy().tobytes())
            return kind, values
    raise CheckpointError(f"{name}.quant_state is missing")


def _nested(
    name: str, state: Mapping[str, Any], count: int, tensors: Mapping[str, TensorEntry]
) -> NestedScales:
    block = state["nested_blocksize"]
    scales = _numbers(tensors[f"{name}.nested_absmax"], -(-count // block))
    table = _numbers(tensors[f"{name}.nested_quant_map"], _BYTES)
    return NestedScales(table, scales, block, float(state["nested_offset"]))


def _numbers(entry: TensorEntry, count: int) -> torch.Tensor:
    if entry.dtype is not torch.float32 or entry.size != count * entry.dtype.itemsize:
        found = f"{entry.dtype} {list(entry.shape)}"
        raise CheckpointError(f"{entry.name} is {found}, not {count} numbers of float32")
    return read_numbers(entry)
