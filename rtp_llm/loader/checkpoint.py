"""The safetensors files of a model folder: what is in them and where, without their data.

The format (https://huggingface.co/docs/safetensors): eight bytes with the length of a JSON header,
the header (name -> dtype, shape, begin and end within the data), the data.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rtp_llm.loader.stacked_experts import split_experts
from rtp_llm.models.refusals import refuse

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
}
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_LONGEST_HEADER = 100_000_000


class CheckpointError(ValueError):
    """A file of the checkpoint is missing, cut off or not what it claims; the message names it."""


@dataclass(frozen=True)
class TensorEntry:
    """One tensor: its bytes are `size` bytes at `offset` of `file`."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    file: Path
    offset: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one entry of the first axis."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def size(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Checkpoint:
    """All tensors of a model folder, in the order in which they lie in the files."""

    folder: Path
    tensors: dict[str, TensorEntry]

    @property
    def num_bytes(self) -> int:
        return sum(entry.size for entry in self.tensors.values())

    @property
    def fp8_weights(self) -> frozenset[str]:
        """Names of the tensors that are stored in 8-bit floats."""
        return frozenset(
            name for name, entry in self.tensors.items() if entry.dtype is torch.float8_e4m3fn
        )

    @classmethod
    def open(cls, folder: str | Path) -> Checkpoint:
        """Read the headers; CheckpointError or UnsupportedModelError name the file at fault.

        As in transformers model.safetensors comes first, then the shards of the index; other
        safetensors files count only if there is exactly one.
        """
        path = Path(folder)
        tensors: dict[str, TensorEntry] = {}
        for file in _files(path):
            for entry in _read_entries(file):
                if entry.name in tensors:
                    raise CheckpointError(
                        f"{entry.name} is in {tensors[entry.name].file} and again in {file}"
                    )
                tensors[entry.name] = entry
        return cls(path, split_experts(tensors))


def _files(folder: Path) -> list[Path]:
    if (folder / _SINGLE).exists():
        return [folder / _SINGLE]
    if (folder / _INDEX).exists():
        return _indexed_files(folder)
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return found
    if found:
        names = ", ".join(file.name for file in found)
        raise CheckpointError(f"{folder} has several safetensors files and no {_INDEX}: {names}")
    others = [file.name for end in ("*.bin", "*.pth", "*.gguf") for file in folder.glob(end)]
    if others:
        raise refuse("weights that are not safetensors", f"{folder} holds {', '.join(others[:4])}")
    raise CheckpointError(f"{folder} holds no weights: neither {_SINGLE} nor {_INDEX}")


def _indexed_files(folder: Path) -> list[Path]:
    try:
        named = json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"].values()
        files = [folder / str(name) for name in sorted(set(named))]
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"cannot read {folder / _INDEX}: {error!r}") from error
    missing = [file.name for file in files if not file.exists()]
    if missing:
        raise CheckpointError(f"{folder / _INDEX} names files that are not there: {missing}")
    return files


def _read_entries(file: Path) -> list[TensorEntry]:
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if 8 + length > size or length > _LONGEST_HEADER:
            raise CheckpointError(f"{file} is not a safetensors file{_guess(start)}")
        text = stream.read(length)
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        listed = [_Fields.read(name, fields) for name, fields in header.items()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{file} has a broken header: {error!r}") from error
    entries = [fields.entry(file, 8 + length) for fields in listed]
    end = max((entry.offset + entry.size for entry in entries), default=0)
    if end > size:
        raise CheckpointError(f"{file} is cut off: {size} bytes of {end}; copy it again")
    return sorted(entries, key=lambda entry: entry.offset)


@dataclass(frozen=True)
class _Fields:
    """What a header says about one tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @classmethod
    def read(cls, name: str, fields: dict[str, Any]) -> _Fields:
        begin, end = fields["data_offsets"]
        shape = tuple(int(length) for length in fields["shape"])
        return cls(name, str(fields["dtype"]), shape, int(begin), int(end))

    def entry(self, file: Path, data: int) -> TensorEntry:
        """The tensor; `data` is where the file's data begin."""
        if self.dtype not in _DTYPES:
            raise refuse("other number type", f"{file}: {self.name} is stored as {self.dtype}")
        entry = TensorEntry(self.name, _DTYPES[self.dtype], self.shape, file, data + self.begin)
        size = self.end - self.begin
        if entry.size != size or self.begin < 0:
            shape = list(self.shape)
            raise CheckpointError(f"{file}: {self.name} has {size} bytes for the shape {shape}")
        return entry


def _guess(start: bytes) -> str:
    if start.startswith(b"version"):
        return ": it is a Git LFS pointer; fetch the file itself (git lfs pull)"
    return ": it is shorter than its header says"
