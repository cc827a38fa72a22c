# SPDX-License-Identifier: Apache-2.0
"""Writes small GGUF files, right ones and broken ones."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rtp_llm.gguf.types import TYPES

ALIGNMENT = 32
_FORMATS = {"u8": "B", "i8": "b", "u16": "H", "i16": "h", "u32": "I", "i32": "i"}
_FORMATS |= {"f32": "f", "bool": "?", "string": "", "array": "", "u64": "Q", "i64": "q", "f64": "d"}
KINDS = {name: number for number, name in enumerate(_FORMATS)}
_GUESSED: dict[type, str] = {bool: "bool", int: "u32", float: "f32", str: "string"}


@dataclass(frozen=True)
class Typed:
    """A value of a number type that Python's own does not tell, such as u16."""

    kind: str
    value: Any


@dataclass(frozen=True)
class Tensor:
    """An entry of the table; `offset` and `data` follow from the others unless given."""

    kind: str = "F32"
    shape: Sequence[int] = (4,)
    data: bytes | None = None
    offset: int | None = None
    kind_id: int | None = None

    @property
    def content(self) -> bytes:
        """The tensor's bytes, zeros unless given."""
        if self.data is not None:
            return self.data
        kind = next(each for each in TYPES.values() if each.name == self.kind)
        count = 1
        for size in self.shape:
            count *= size
        return bytes(count // kind.elements * kind.block_bytes)


def packed(metadata: Mapping[str, Any], tensors: Mapping[str, Tensor], **changes: int) -> bytes:
    """A whole file. `changes`: version, num_tensors, num_keys or alignment other than right."""
    alignment = changes.get("alignment", ALIGNMENT)
    head = b"GGUF" + struct.pack(
        "<IQQ",
        changes.get("version", 3),
        changes.get("num_tensors", len(tensors)),
        changes.get("num_keys", len(metadata)),
    )
    head += b"".join(text(key) + value(each) for key, each in metadata.items())
    data = b""
    for name, tensor in tensors.items():
        offset = len(data) if tensor.offset is None else tensor.offset
        head += text(name) + _entry(tensor, offset)
        data += _padded(tensor.content, alignment)
    return _padded(head, alignment) + data


def write(file: Path, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    """Write the file of `packed` and return it."""
    file.write_bytes(packed(metadata, tensors))
    return file


def text(content: str | bytes) -> bytes:
    """A length and the bytes."""
    encoded = content.encode() if isinstance(content, str) else content
    return struct.pack("<Q", len(encoded)) + encoded


def value(each: Any) -> bytes:
    """Type and value of a number, a text, a list of either, or the bytes given."""
    if isinstance(each, bytes):
        return each
    kind, content = _kind(each)
    if isinstance(content, list):
        kind = kind if isinstance(each, Typed) else _kind(content[0])[0]
        items = b"".join(_plain(kind, item) for item in content)
        return struct.pack("<IIQ", KINDS["array"], KINDS[kind], len(content)) + items
    return struct.pack("<I", KINDS[kind]) + _plain(kind, content)


def _kind(each: Any) -> tuple[str, Any]:
    if isinstance(each, Typed):
        return each.kind, each.value
    return _GUESSED.get(type(each), ""), each


def _plain(kind: str, content: Any) -> bytes:
    return text(content) if kind == "string" else struct.pack(f"<{_FORMATS[kind]}", content)


def _entry(tensor: Tensor, offset: int) -> bytes:
    kinds = {each.name: each.id for each in TYPES.values()}
    kind = kinds[tensor.kind] if tensor.kind_id is None else tensor.kind_id
    axes = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *reversed(tensor.shape))
    return axes + struct.pack("<IQ", kind, offset)


def _padded(content: bytes, alignment: int) -> bytes:
    return content + bytes(-len(content) % alignment)
