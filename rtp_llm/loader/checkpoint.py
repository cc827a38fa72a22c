# SPDX-License-Identifier: Apache-2.0
"""The index of a model's safetensors or GGUF files: tensors and their locations, without data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from rtp_llm.gguf import is_gguf
from rtp_llm.layers.weights.stored_format import StoredFormat
from rtp_llm.loader.gguf_tensors import read_gguf_tensors
from rtp_llm.loader.granite_tensors import granite_tensors
from rtp_llm.loader.mistral_tensors import mistral_tensors
from rtp_llm.loader.nemotron_tensors import nemotron_tensors
from rtp_llm.loader.safetensors_header import CheckpointError, StoredTensor, read_header
from rtp_llm.loader.stacked_experts import split_experts
from rtp_llm.loader.tensor_entry import TensorEntry
from rtp_llm.model_folder import ModelFilesError, is_mistral, is_there, name_of, read_json, shown
from rtp_llm.models.refusals import refuse

__all__ = ["Checkpoint", "CheckpointError", "TensorEntry"]

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I8": torch.int8,
    "U8": torch.uint8,  # two numbers of four bits, or the exponents of scales
    "U32": torch.int32,  # the same; bits are read as they are
    "I32": torch.int32,  # several integers of 4 or 8 bits, or the groups of columns
    "F8_E4M3": torch.float8_e4m3fn,
}
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
# Of Mistral's own layout.
_CONSOLIDATED, _CONSOLIDATED_INDEX = "consolidated", "consolidated.safetensors.index.json"
_LISTED = 4


@dataclass(frozen=True)
class Checkpoint:
    """All tensors of a model folder or GGUF file, in the order in which they lie in the files.

    `unreadable`: tensors with unsupported dtypes -> dtype and file. `formats`: the stored format of
    each module whose weight is not a float tensor, if the files say it, as GGUF files do.
    """

    folder: Path
    tensors: dict[str, TensorEntry]
    unreadable: dict[str, str] = field(default_factory=dict)
    formats: Mapping[str, StoredFormat] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        return sum(entry.size for entry in self.tensors.values())

    def renamed(self, prefixes: tuple[str, ...]) -> Checkpoint:
        """Replace the first of `prefixes` that names begin with by "model."; if there is none,
        nothing changes. What precedes "model." in it is removed from other names, too, such as
        that of the logits head."""
        names = (*self.tensors, *self.unreadable)
        found = (each for each in prefixes if any(name.startswith(each) for name in names))
        prefix = next(found, "")
        if not prefix:
            return self
        made = {name: _without(name, prefix) for name in names}
        if len(set(made.values())) < len(made):
            raise CheckpointError(f"{self.folder} has names beginning with {prefix} and without it")
        tensors = {made[name]: replace(e, name=made[name]) for name, e in self.tensors.items()}
        return replace(
            self,
            tensors=tensors,
            unreadable={made[name]: kind for name, kind in self.unreadable.items()},
        )

    def with_prefix(self, embedding: str) -> Checkpoint:
        """Add "model." to all names if none has it and one is `embedding`: the layers were saved
        without a head."""
        names = (*self.tensors, *self.unreadable)
        if any(name.startswith("model.") for name in names) or embedding not in names:
            return self
        tensors = {
            f"model.{name}": replace(e, name=f"model.{name}") for name, e in self.tensors.items()
        }
        unreadable = {f"model.{name}": kind for name, kind in self.unreadable.items()}
        return replace(self, tensors=tensors, unreadable=unreadable)

    @classmethod
    def open(cls, folder: str | Path) -> Checkpoint:
        """Read the headers; see stored_tensors."""
        path = Path(folder)
        if is_gguf(path):
            gguf = read_gguf_tensors(path)
            return cls(path, gguf.tensors, formats=gguf.formats)
        tensors: dict[str, TensorEntry] = {}
        unreadable: dict[str, str] = {}
        for file, stored in stored_tensors(path):
            if stored.dtype in _DTYPES:
                tensors[stored.name] = _entry(stored, file)
            else:
                unreadable[stored.name] = f"{stored.dtype} in {file}"
        if is_mistral(path):
            tensors = mistral_tensors(path, tensors)
        return cls(path, split_experts(granite_tensors(nemotron_tensors(tensors))), unreadable)


def stored_tensors(folder: Path) -> Iterator[tuple[Path, StoredTensor]]:
    """The tensors of a model folder, of any dtype, each with its file.

    As in transformers, model.safetensors takes precedence, then the shards of the index; any other
    safetensors file is used only if it is the only one. Raises CheckpointError or
    UnsupportedModelError naming the file at fault.
    """
    seen: dict[str, Path] = {}
    for file in _files(folder):
        for stored in read_header(file):
            name = stored.name
            if name in seen:
                raise CheckpointError(f"{name_of(name)} is in {seen[name]} and again in {file}")
            seen[name] = file
            yield file, stored


def _without(name: str, prefix: str) -> str:
    if name.startswith(prefix):
        return f"model.{name.removeprefix(prefix)}"
    outer, model, _ = prefix.rpartition(".model.")
    return name.removeprefix(f"{outer}.") if model else name


def _entry(stored: StoredTensor, file: Path) -> TensorEntry:
    return TensorEntry(stored.name, _DTYPES[stored.dtype], stored.shape, file, stored.offset)


def _files(folder: Path) -> list[Path]:
    if is_there(folder / _SINGLE):
        return [folder / _SINGLE]
    if is_there(folder / _INDEX):
        return _indexed_files(folder, _INDEX)
    own = is_mistral(folder)
    if own and is_there(folder / _CONSOLIDATED_INDEX):
        return _indexed_files(folder, _CONSOLIDATED_INDEX)
    try:
        names = sorted(file.name for file in folder.iterdir())
    except OSError as error:
        raise CheckpointError(f"cannot read {folder}: {error.strerror or error}") from error
    found = [folder / name for name in names if name.endswith(".safetensors")]
    if own:
        found = [file for file in found if file.name.startswith(_CONSOLIDATED)]
    if len(found) == 1 or (own and found):
        return found
    if found:
        listed = ", ".join(file.name for file in found[:12])
        raise CheckpointError(f"{folder} has several safetensors files and no {_INDEX}: {listed}")
    others = [name for name in names if name.endswith((".bin", ".pth", ".gguf"))]
    if others:
        raise refuse("weights that are not safetensors", f"{folder} holds {', '.join(others[:4])}")
    raise CheckpointError(f"{folder} holds no weights: neither {_SINGLE} nor {_INDEX}")


def _indexed_files(folder: Path, index_name: str) -> list[Path]:
    index = folder / index_name
    try:
        named = read_json(index, required=True).get("weight_map")
    except ModelFilesError as error:
        raise CheckpointError(str(error)) from error
    if not isinstance(named, dict) or not all(isinstance(v, str) for v in named.values()):
        raise CheckpointError(
            f"cannot read {index}: weight_map must map tensors to files; not {shown(named)}"
        )
    names = sorted(set(named.values()))
    for name in names:
        # Links may lead anywhere, but names in the index must be inside this folder.
        if name in ("", "..") or Path(name).name != name or not name.isprintable():
            raise CheckpointError(
                f"{index}: weight_map must name files of this folder; not {shown(name)}"
            )
    missing = [name for name in names if not is_there(folder / name)]
    if missing:
        more = f" and {len(missing) - _LISTED} more" if len(missing) > _LISTED else ""
        listed = [name_of(name) for name in missing[:_LISTED]]
        raise CheckpointError(f"{index} names files that are not there: {listed}{more}")
    return [folder / name for name in names]
