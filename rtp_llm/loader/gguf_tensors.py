# SPDX-License-Identifier: Apache-2.0
"""The tensors of a GGUF file under the names and in the shapes of a Hugging Face checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from rtp_llm.gguf import GgufModel, GgufTensor, language_model
from rtp_llm.layers.weights.gguf_blocks import BLOCKS, gguf_format
from rtp_llm.layers.weights.stored_format import WEIGHT_NAME, StoredFormat
from rtp_llm.loader.row_changes import HalvesInTurn, OneAdded, RowChange
from rtp_llm.loader.safetensors_header import CheckpointError
from rtp_llm.loader.tensor_entry import TensorEntry
from rtp_llm.model_folder import name_of
from rtp_llm.models.config_fields import MAX_EXPERTS
from rtp_llm.models.gguf.architectures import GgufArchitecture
from rtp_llm.models.gguf.keys import GgufKeys
from rtp_llm.models.gguf.names import HfName, hf_name
from rtp_llm.models.gguf.values import ROPE_DIVISORS, gguf_architecture
from rtp_llm.models.refusals import refuse

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_OF_HEADS = ("self_attn.q_proj", "self_attn.k_proj")
_NORM, _ONE_ROW = "norm", "shared_expert_gate"


@dataclass(frozen=True)
class GgufTensors:
    """Tensors by name, and the format of each module whose weight is not a float tensor."""

    tensors: dict[str, TensorEntry]
    formats: dict[str, StoredFormat]


def read_gguf_tensors(path: Path) -> GgufTensors:
    """The tensors of a GGUF model, those of several experts one by one.

    Names that are not known stay. Raises CheckpointError or GgufError for broken files and
    UnsupportedModelError for an architecture or a type that is not supported.
    """
    model = language_model(path)
    row = gguf_architecture(model)
    found = GgufTensors({}, {})
    for tensor in model.tensors.values():
        if tensor.name == ROPE_DIVISORS:
            continue
        if tensor.type.why_refused:
            detail = f"{name_of(tensor.name)} is {tensor.type.name}: {tensor.type.why_refused}"
            raise refuse("GGUF tensor type", detail, model.metadata.architecture)
        name = hf_name(tensor.name, row.layers)
        if name is None:
            _add(found, _entry(tensor, tensor.name, tensor.shape), None)
            continue
        change = _change(model, row, name)
        for each, shape, offset in _parts(tensor, name):
            made = replace(_entry(tensor, "", shape), offset=offset, change=change)
            _add_named(found, tensor, each, made)
    return found


def _add_named(found: GgufTensors, tensor: GgufTensor, name: HfName, entry: TensorEntry) -> None:
    has_blocks = tensor.type.elements > 1
    suffix = BLOCKS if has_blocks and name.suffix == WEIGHT_NAME else name.suffix
    full = f"{name.module}.{suffix}" if suffix else name.module
    _add(found, replace(entry, name=full), name.module if suffix == BLOCKS else None)
    if suffix == BLOCKS:
        found.formats[name.module] = gguf_format(tensor.type.name)


def _add(found: GgufTensors, entry: TensorEntry, module: str | None) -> None:
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
        if len(shape) == 1 and name.module.endswith(_ONE_ROW):  # axes of one entry are not stored
            shape = (1, *shape)
        yield name, shape, tensor.offset
        return
    if len(shape) < 2 or shape[0] > MAX_EXPERTS:
        raise CheckpointError(f"{tensor.file}: {tensor.name} is {list(shape)}, not for experts")
    size = tensor.size // shape[0]
    for expert in range(shape[0]):
        yield name.of_expert(expert), shape[1:], tensor.offset + expert * size


def _change(model: GgufModel, row: GgufArchitecture, name: HfName) -> RowChange | None:
    if row.paired_rows and name.module.endswith(_OF_HEADS):
        keys = GgufKeys(model)
        heads = keys.needed("attention.head_count")
        return HalvesInTurn(
            keys.integer("attention.key_length") or keys.needed("embedding_length") // heads
        )
    return OneAdded() if row.norms_plus_one and name.module.endswith(_NORM) else None
