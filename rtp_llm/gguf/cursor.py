# SPDX-License-Identifier: Apache-2.0
"""Reads the header of a GGUF file from front to back, never beyond its end."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

from rtp_llm.model_folder import ModelFilesError, shown

# Headers of published files stay below 40 MiB, nearly all of it the vocabulary.
LONGEST_HEADER = 512 * 2**20
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


class GgufError(ModelFilesError):
    """A GGUF file is cut off, malformed or not supported; the message names it."""


class BadHeader(ValueError):
    """The header is malformed; read_file adds the name of the file."""


class Cursor:
    """A position in `stream`, a buffered file of `size` bytes."""

    def __init__(self, stream: BinaryIO, size: int, limit: int = LONGEST_HEADER) -> None:
        self._stream, self._size, self._limit = stream, size, limit
        self.position = 0

    def check(self, count: int, smallest: int, what: str) -> None:
        """Raise BadHeader unless `count` items of at least `smallest` bytes can follow."""
        needed = count * smallest
        if needed > self._size - self.position:
            left = self._size - self.position
            raise BadHeader(f"{what} needs {needed} bytes and {left} are left: it is cut off")
        if needed > self._limit - self.position:
            raise BadHeader(f"{what} needs {needed} bytes; headers have at most {self._limit}")

    def take(self, count: int, what: str) -> bytes:
        """The next `count` bytes, which are part of `what`."""
        self.check(count, 1, what)
        found = self._stream.read(count)
        if len(found) != count:
            raise BadHeader("the file became shorter while it was read")
        self.position += count
        return found

    def u32(self, what: str) -> int:
        """The next four bytes as an unsigned integer."""
        return int(_U32.unpack(self.take(4, what))[0])

    def u64(self, what: str) -> int:
        """The next eight bytes as an unsigned integer."""
        return int(_U64.unpack(self.take(8, what))[0])

    def text(self, what: str, longest: int | None = None) -> str:
        """A length and as many bytes of UTF-8, at most `longest` of them."""
        length = self.u64(what)
        if longest is not None and length > longest:
            raise BadHeader(f"{what} has {length} bytes; at most {longest} are allowed")
        return decoded(self.take(length, what), what)


def decoded(content: bytes, what: str) -> str:
    """The UTF-8 text in `content`; raises BadHeader naming `what`."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise BadHeader(f"{what} is not UTF-8: {shown(content)}") from None


def named(path: Path, error: BadHeader) -> GgufError:
    """The error for the user, with the name of the file."""
    return GgufError(f"cannot read {path}: {error}")
