# SPDX-License-Identifier: Apache-2.0
"""The tensors of a GGUF file under the names and in the shapes of a Hugging Face checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from rtp_llm.gguf import GgufModel, GgufTensor, language_model
from rtp_llm.gguf.tokens import find_tokens
from rtp_llm.layers.weights.gguf_blocks import BLOCKS, gguf_format
from rtp_llm.layers.weights.stored_format import WEIGHT_NAME, StoredFormat
from rtp_llm.loader.gguf_changes import SPLIT_KV, GgufChanges
from rtp_llm.loader.read_tensor import read_numbers
from rtp_llm.loader.row_changes import RowChange
from rtp_llm.loader.safetensors_header import CheckpointError
from rtp_llm.loader.tensor_entry import TensorEntry
from rtp_llm.model_folder import name_of
from rtp_llm.models.config_fields import MAX_EXPERTS
from rtp_llm.models.gguf.architectures import num_layers
from rtp_llm.models.gguf.keys import GgufKeys
from rtp_llm.models.gguf.names import HfName, hf_name, is_beyond
from rtp_llm.models.gguf.values import (
    ANSWERS,
    EMBEDDING,
    HEAD,
    ROPE_DIVISORS,
    gguf_architecture,
)
from rtp_llm.models.refusals import refuse
from rtp_llm.models.registry import model_tasks
from rtp_llm.ops.gguf.blocks import dequantize

# Heads that no model here has, those of rerankers with rows of the logits head; and layers that
# follow pooling, which are loaded separately.
_HEADS = ("cls.", "dense_")
# The cosine of the angle between two roundings of the same row.
_ALIKE = 0.8
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class GgufTensors:
    """Tensors by name, and the format of each module whose weight is not a float tensor."""

    tensors: dict[str, TensorEntry]
    formats: dict[str, StoredFormat]


def read_gguf_tensors(path: Path) -> GgufTensors:
    """The tensors of a GGUF model, those of several experts one by one.

    Names that are not known stay. Layers that predict further tokens are left out but for the one
    that drafts ("mtp."), and heads but for BERT's scores. Raises CheckpointError or GgufError
    for broken files and UnsupportedModelError for an architecture or a type that is not supported.
    """
    model = language_model(path)
    row, keys = gguf_architecture(model), GgufKeys(model)
    found, layers = GgufTensors({}, {}), num_layers(keys)
    _check_answers(model, row.name)
    changes = GgufChanges(row, keys)
    for tensor in model.tensors.values():
        if tensor.name == ROPE_DIVISORS:
            continue
        _check_type(tensor, model.metadata.architecture)
        name = hf_name(tensor.name, row.tensors, layers)
        if name is not None:
            _add_parts(found, tensor, name, changes.of(tensor, name))
        elif not is_beyond(tensor.name, layers) and not tensor.name.startswith(_HEADS):
            _add(found, _entry(tensor, tensor.name, tensor.shape))
    return found


def _check_answers(model: GgufModel, architecture: str) -> None:
    """Refuse rerankers whose logits head is not the embedding, and not in the file either:
    converters keep its rows for "yes" and "no" only."""
    answers, embedding = model.tensors.get(ANSWERS), model.tensors.get(EMBEDDING)
    is_asked = model.metadata.pooling == "rank" and "score" in model_tasks(architecture)
    if not is_asked or HEAD in model.tensors or answers is None or embedding is None:
        return
    tokens = find_tokens(model.metadata, ("yes", "no"))
    for row, answer in enumerate(("yes", "no")):
        kept, tied = _row(answers, row), _row(embedding, tokens.get(answer, -1))
        if not torch.cosine_similarity(kept, tied, dim=0) > _ALIKE:
            found = f"{answers.file}: {ANSWERS} is not of {EMBEDDING}, and {HEAD} is missing"
            raise refuse("classification head of a GGUF file", found, architecture)


def _row(tensor: GgufTensor, row: int) -> Tensor:
    """float32 [columns]. Raises CheckpointError if the tensor has no such row."""
    if len(tensor.shape) != 2 or not 0 <= row < tensor.shape[0]:
        raise CheckpointError(f"{tensor.file}: {tensor.name} {list(tensor.shape)} has no row {row}")
    return read_gguf_floats(tensor, row)


def read_gguf_floats(tensor: GgufTensor, row: int | None = None) -> Tensor:
    """The weights of one tensor, float32 in its shape, or of one row of it. Raises CheckpointError
    for a cut-off file and UnsupportedModelError for a type that is not supported."""
    _check_type(tensor)
    entry, shape = _entry(tensor, tensor.name, tensor.shape), tensor.shape
    if row is None:
        numbers = read_numbers(entry)
    else:
        shape, width = shape[-1:], entry.shape[-1]
        numbers = read_numbers(entry, row * width, width)
    if tensor.type.elements > 1:
        blocks = numbers.view(-1, tensor.type.block_bytes)
        numbers = dequantize(tensor.type.name, blocks)
    return numbers.float().view(shape)


def _check_type(tensor: GgufTensor, architecture: str = "") -> None:
    if tensor.type.why_refused:
        detail = f"{name_of(tensor.name)} is {tensor.type.name}: {tensor.type.why_refused}"
        raise refuse("GGUF tensor type", detail, architecture)


def _add_parts(
    found: GgufTensors, tensor: GgufTensor, name: HfName, change: RowChange | None
) -> None:
    has_blocks = tensor.type.elements > 1 and name.suffix == WEIGHT_NAME
    has_blocks = has_blocks and not (change is not None and change.makes_floats)
    for part, shape, offset in _parts(tensor, name):
        suffix = BLOCKS if has_blocks else part.suffix
        full = f"{part.module}.{suffix}" if suffix else part.module
        _add(found, replace(_entry(tensor, full, shape), offset=offset, change=change))
        if has_blocks:
            found.formats[part.module] = gguf_format(tensor.type.name)


def _add(found: GgufTensors, entry: TensorEntry) -> None:
    if entry.name in found.tensors:
        raise CheckpointError(f"{entry.file} holds {name_of(entry.name)} once more")
    found.tensors[entry.name] = entry


def _entry(tensor: GgufTensor, name: str, shape: tuple[int, ...]) -> TensorEntry:
    """The tensor with the weights of `shape`, at the beginning of what the file has."""
    kind = tensor.type
    if kind.elements == 1:
        return TensorEntry(name, _DTYPES[kind.name], shape, tensor.file, tensor.offset)
    shape = (*shape[:-1], shape[-1] // kind.elements * kind.block_bytes)
    return TensorEntry(name, torch.uint8, shape, tensor.file, tensor.offset)


def _parts(tensor: GgufTensor, name: HfName) -> Iterator[tuple[HfName, tuple[int, ...], int]]:
    """(name, shape, offset in the file) of the tensor, or of each expert's part of it."""
    shape = tensor.shape
    if not name.is_stacked:
        # Axes of one entry are not stored.
        if len(shape) == 1 and name.module.endswith("shared_expert_gate"):
            shape = (1, *shape)
        if len(shape) == 3 and name.module.endswith(SPLIT_KV):
            shape = (shape[0] * shape[1], shape[2])
        if len(shape) == 2 and name.module.endswith("conv1d"):
            shape = (shape[0], 1, shape[1])
        yield name, shape, tensor.offset
        return
    if len(shape) < 2 or shape[0] > MAX_EXPERTS:
        raise CheckpointError(f"{tensor.file}: {tensor.name} is {list(shape)}, not for experts")
    offset = tensor.offset
    for expert in range(shape[0]):
        parts = name.of_expert(expert)
        if shape[1] % len(parts):
            raise CheckpointError(f"{tensor.file}: {tensor.name} has an odd number of rows")
        for part in parts:
            yield part, (shape[1] // len(parts), *shape[2:]), offset
            offset += tensor.size // shape[0] // len(parts)
