# SPDX-License-Identifier: Apache-2.0
"""The header of a safetensors file, as strict as the safetensors library reads it.

The format (https://huggingface.co/docs/safetensors): eight bytes with the length of a JSON header,
the header (name -> dtype, shape, begin and end within the data), the data. Tensors follow each
other without gaps or overlaps, up to the last byte of the file.
"""

from __future__ import annotations

import json
import math
import struct
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from rtp_llm.model_folder import ModelFilesError, name_of, open_file, shown

_LONGEST_HEADER = 100_000_000
_LARGEST = 2**64 - 1
# Bits of a number of each type that the format knows.
_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("BOOL", "I8", "U8"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


class CheckpointError(ModelFilesError):
    """A file of the checkpoint is missing, cut off or not what it claims; the message names it."""


@dataclass(frozen=True)
class StoredTensor:
    """The header's entry for one tensor, which occupies `size` bytes at `offset` of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int


class _BadHeader(ValueError):
    """The header is malformed; the caller adds the name of the file."""


def read_header(file: Path) -> list[StoredTensor]:
    """Return the tensors of a file in file order; CheckpointError says what is wrong."""
    try:
        with open_file(file) as stream:
            size = stream.seek(0, 2)
            stream.seek(0)
            start = stream.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
            if 8 + length > size or length > _LONGEST_HEADER:
                raise CheckpointError(f"{file} is not a safetensors file{_guess(start)}")
            text = stream.read(length)
    except OSError as error:
        raise CheckpointError(f"cannot read {file}: {error.strerror or error}") from error
    except ModelFilesError as error:
        raise CheckpointError(str(error)) from error
    try:
        tensors = [_tensor(name, fields) for name, fields in _parse(text).items()]
        tensors.sort(key=lambda tensor: (tensor.offset, tensor.size))
        end = _check_places(tensors)
    except _BadHeader as error:
        raise CheckpointError(f"{file} has a broken header: {error}") from error
    available = size - 8 - length
    if end > available:
        raise CheckpointError(
            f"{file} is cut off: {size} bytes of {8 + length + end}; copy it again"
        )
    if end < available:
        raise CheckpointError(f"{file} has {available - end} bytes after its last tensor")
    return [_moved(tensor, 8 + length) for tensor in tensors]


def _parse(text: bytes) -> dict[str, Any]:
    """Name -> fields, without the metadata; stricter than Python's JSON where the library is."""
    if not text.startswith(b"{"):
        raise _BadHeader("it does not begin with {")
    try:
        header: dict[str, Any] = json.loads(
            text.decode(),
            object_pairs_hook=_without_duplicates,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
    except RecursionError:
        raise _BadHeader("it is nested too deeply") from None
    except _BadHeader:
        raise
    except ValueError as error:
        raise _BadHeader(shown(str(error))) from None
    metadata = header.pop("__metadata__", None)
    if metadata is not None and not _is_metadata(metadata):
        raise _BadHeader(f"__metadata__ must map texts to texts; not {shown(metadata)}")
    return header


def _is_metadata(metadata: object) -> bool:
    return isinstance(metadata, dict) and all(
        isinstance(value, str) and _is_unicode(value) for value in metadata.values()
    )


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        ((twice, _),) = counts.most_common(1)
        raise _BadHeader(f"{name_of(twice)} comes twice")
    for name in found:
        if not _is_unicode(name):
            raise _BadHeader(f"{shown(name)} is no text")
    return found


def _is_unicode(text: str) -> bool:
    """Whether `text` contains no unpaired surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _no_constant(name: str) -> Any:
    raise _BadHeader(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _BadHeader(f"{shown(text)} is out of range")
    return number


def _tensor(name: str, fields: object) -> StoredTensor:
    if not isinstance(fields, dict) or any(isinstance(v, dict) for v in fields.values()):
        raise _BadHeader(f"{name_of(name)} must be an object of dtype, shape and data_offsets")
    dtype, shape = fields.get("dtype"), fields.get("shape")
    offsets = fields.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise _BadHeader(f"{name_of(name)} has the unknown dtype {shown(dtype)}")
    if not _are_sizes(shape):
        raise _BadHeader(f"{name_of(name)} must have a list of sizes as shape; not {shown(shape)}")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        expected = "must have begin and end as data_offsets"
        raise _BadHeader(f"{name_of(name)} {expected}; not {shown(offsets)}")
    size = offsets[1] - offsets[0]
    if _bits(shape, dtype) != 8 * size:
        raise _BadHeader(f"{name_of(name)} has {size} bytes for the shape {shown(shape)}")
    return StoredTensor(name, dtype, tuple(shape), offsets[0], size)


def _are_sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(
        isinstance(v, int) and not isinstance(v, bool) and 0 <= v <= _LARGEST for v in value
    )


def _bits(shape: Iterable[int], dtype: str) -> int:
    """Size of a tensor in bits; -1 if an intermediate product exceeds 64 bits."""
    bits = 1
    for factor in (*shape, _BITS[dtype]):
        bits *= factor
        if bits > _LARGEST:
            return -1
    return bits


def _check_places(tensors: list[StoredTensor]) -> int:
    """Return where the last tensor ends; _BadHeader if tensors overlap or leave a gap."""
    end = 0
    for tensor in tensors:
        if tensor.offset != end:
            what = "overlaps the tensor before it" if tensor.offset < end else "follows a hole"
            raise _BadHeader(f"{name_of(tensor.name)} {what}")
        end += tensor.size
    return end


def _moved(tensor: StoredTensor, by: int) -> StoredTensor:
    offset = tensor.offset + by
    return StoredTensor(tensor.name, tensor.dtype, tensor.shape, offset, tensor.size)


def _guess(start: bytes) -> str:
    if start.startswith(b"version"):
        return ": it is a Git LFS pointer; fetch the file itself (git lfs pull)"
    return ": it is shorter than its header says"
