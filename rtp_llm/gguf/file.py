# SPDX-License-Identifier: Apache-2.0
"""One GGUF file: its metadata, and where its tensors lie.

The format (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): magic, version, counts, the
metadata, the tensors' names, shapes, types and offsets, then the data, in which every tensor begins
at a multiple of `general.alignment`.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rtp_llm.gguf.cursor import BadHeader, Cursor, GgufError, named
from rtp_llm.gguf.metadata import Metadata
from rtp_llm.gguf.types import TYPES, TensorType
from rtp_llm.gguf.values import Value, read_value
from rtp_llm.model_folder import ModelFilesError, name_of, open_file, shown

MAGIC = b"GGUF"
VERSIONS = (2, 3)  # they differ in byte order only, and big-endian files are refused
ALIGNMENT = "general.alignment"
_DEFAULT_ALIGNMENT = 32
_LONGEST_KEY, _LONGEST_NAME, _MOST_AXES = 65535, 64, 4
# Published files have at most some thousands; a million tiny entries would take a gigabyte here.
_MOST_ENTRIES = 100_000
# Less than the smallest entries have: a length, a type and a byte; a tensor without axes.
_PAIR_BYTES, _TENSOR_BYTES = 8 + 4 + 1, 8 + 4 + 4 + 8
_LARGEST = 2**63 - 1


@dataclass(frozen=True)
class GgufTensor:
    """A tensor, of `size` bytes at `offset` of `file`; the last axis of `shape` is contiguous."""

    name: str
    type: TensorType
    shape: tuple[int, ...]
    file: Path
    offset: int
    size: int


@dataclass(frozen=True)
class GgufFile:
    """The header of one file, its tensors in the order of the data."""

    path: Path
    metadata: Metadata
    tensors: tuple[GgufTensor, ...]


def read_file(path: Path) -> GgufFile:
    """Read the header of a file, no data. Raises GgufError saying what is wrong."""
    try:
        with open_file(path) as raw, io.BufferedReader(raw, 2**18) as stream:  # type: ignore[type-var]
            size = stream.seek(0, io.SEEK_END)
            stream.seek(0)
            return _read(path, Cursor(stream, size), size)
    except BadHeader as error:
        raise named(path, error) from error
    except OSError as error:
        raise GgufError(f"cannot read {path}: {error.strerror or error}") from error
    except GgufError:
        raise
    except ModelFilesError as error:
        raise GgufError(str(error)) from error


def _read(path: Path, cursor: Cursor, size: int) -> GgufFile:
    _check_start(cursor)
    tensors, pairs = cursor.u64("the number of tensors"), cursor.u64("the number of keys")
    _check_table(cursor, pairs, _PAIR_BYTES, "keys")
    values: dict[str, Value] = {}
    for _ in range(pairs):
        key = cursor.text("a key of the metadata", _LONGEST_KEY)
        if not key:
            raise BadHeader("a key of the metadata is empty")
        if key in values:
            raise BadHeader(f"the key {name_of(key)} comes twice")
        values[key] = read_value(cursor, name_of(key))
    _check_table(cursor, tensors, _TENSOR_BYTES, "tensors")
    metadata = Metadata(path, values)
    alignment = _alignment(metadata)
    found = [_tensor(path, cursor, alignment) for _ in range(tensors)]
    start = math.ceil(cursor.position / alignment) * alignment
    return GgufFile(path, metadata, _placed(found, start, size))


def _check_table(cursor: Cursor, count: int, smallest: int, what: str) -> None:
    cursor.check(count, smallest, f"a table of {count} {what}")
    if count > _MOST_ENTRIES:
        raise BadHeader(f"it has {count} {what}; at most {_MOST_ENTRIES} are allowed")


def _check_start(cursor: Cursor) -> None:
    start = cursor.take(4, "the magic number")
    if start != MAGIC:
        raise BadHeader(f"it is not a GGUF file{_guess(start)}")
    version = cursor.u32("the version")
    if version in VERSIONS:
        return
    if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
        raise BadHeader("it is a big-endian file; take one for little-endian machines")
    raise BadHeader(f"it has version {version} of the format; supported are 2 and 3")


def _guess(start: bytes) -> str:
    if start == b"vers":
        return ": it is a Git LFS pointer; fetch the file itself (git lfs pull)"
    if start in (b"lmgg", b"fmgg", b"tjgg"):
        return ": it is in a format that llama.cpp left in 2023; take a newer file of the model"
    return f": it begins with {shown(start)}"


def _alignment(metadata: Metadata) -> int:
    found = metadata.integer(ALIGNMENT)
    alignment = _DEFAULT_ALIGNMENT if found is None else found
    if alignment < 1 or alignment & (alignment - 1):
        raise BadHeader(f"{ALIGNMENT} must be a power of two; not {alignment}")
    return alignment


def _tensor(path: Path, cursor: Cursor, alignment: int) -> GgufTensor:
    """An entry of the table, its offset from the start of the data."""
    name = cursor.text("the name of a tensor", _LONGEST_NAME)
    if not name:
        raise BadHeader("a tensor has no name")
    what = name_of(name)
    axes = cursor.u32(what)
    if axes > _MOST_AXES:
        raise BadHeader(f"{what} has {axes} axes; at most {_MOST_AXES} are allowed")
    sizes = [cursor.u64(what) for _ in range(axes)]
    kind, offset = cursor.u32(what), cursor.u64(what)
    if kind not in TYPES:
        raise BadHeader(f"{what} has the unknown type {kind}; a newer format needs a newer reader")
    if offset % alignment:
        raise BadHeader(f"{what} begins at {offset}, which is no multiple of {alignment}")
    size = _bytes(sizes, TYPES[kind], what)
    return GgufTensor(name, TYPES[kind], tuple(reversed(sizes)), path, offset, size)


def _bytes(sizes: list[int], kind: TensorType, what: str) -> int:
    """Bytes of a tensor whose fastest axis comes first."""
    if 0 in sizes:
        raise BadHeader(f"{what} has an empty axis: {sizes}")
    row = sizes[0] if sizes else 1
    if row % kind.elements:
        blocks = f"blocks of {kind.elements}"
        raise BadHeader(f"{what} has rows of {row} weights; {kind.name} has {blocks}")
    count = math.prod(sizes)  # of at most four factors below 2**64
    if count > _LARGEST:
        raise BadHeader(f"{what} has {count} weights, which no file holds")
    return count // kind.elements * kind.block_bytes


def _placed(found: Iterable[GgufTensor], start: int, size: int) -> tuple[GgufTensor, ...]:
    """The tensors in the order of their data, with offsets in the file."""
    tensors = sorted(found, key=lambda tensor: (tensor.offset, tensor.size))
    names: set[str] = set()
    end, placed = 0, []
    for tensor in tensors:
        what = name_of(tensor.name)
        if tensor.name in names:
            raise BadHeader(f"the tensor {what} comes twice")
        if tensor.offset < end:
            raise BadHeader(f"{what} overlaps the tensor before it")
        end = tensor.offset + tensor.size
        if start + end > size:
            raise BadHeader(f"it is cut off: {what} ends at {start + end} of {size} bytes")
        names.add(tensor.name)
        offset = start + tensor.offset
        shape = tensor.shape
        placed.append(GgufTensor(tensor.name, tensor.type, shape, tensor.file, offset, tensor.size))
    return tuple(placed)
