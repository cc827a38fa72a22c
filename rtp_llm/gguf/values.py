# SPDX-License-Identifier: Apache-2.0
"""The values of GGUF metadata: numbers, booleans, texts and arrays of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np

from rtp_llm.gguf.cursor import BadHeader, Cursor, decoded

_BOOL, _STRING, _ARRAY = 7, 8, 9
# The number types as numpy names them; booleans are checked separately.
_NUMBERS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    _BOOL: "<u1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_LENGTH_BYTES = 8


class Texts(Sequence[str]):
    """The texts of an array, decoded one by one: in memory they take what they take in the file.

    `content` holds them one after the other, `ends` [count] int64 where each one ends.
    """

    def __init__(self, content: bytearray, ends: np.ndarray) -> None:
        self._content, self._ends = content, ends

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        begin = int(self._ends[number - 1]) if number else 0
        return self._content[begin : int(self._ends[number])].decode()

    def __iter__(self) -> Iterator[str]:
        begin = 0
        for end in self._ends:
            yield self._content[begin : int(end)].decode()
            begin = int(end)


# Arrays of numbers are numpy arrays; of booleans, of dtype bool.
Value = int | float | bool | str | np.ndarray | Texts


def read_value(cursor: Cursor, what: str) -> Value:
    """The type and the value at `cursor`; raises BadHeader naming `what`."""
    kind = cursor.u32(what)
    if kind == _ARRAY:
        return _array(cursor, what)
    if kind == _STRING:
        return cursor.text(what)
    number = _numbers(cursor, kind, 1, what)[0].item()
    assert isinstance(number, int | float)
    return number


def _array(cursor: Cursor, what: str) -> np.ndarray | Texts:
    kind = cursor.u32(what)
    count = cursor.u64(what)
    if kind == _ARRAY:
        raise BadHeader(f"{what} is an array of arrays, which no published file has")
    return _texts(cursor, count, what) if kind == _STRING else _numbers(cursor, kind, count, what)


def _numbers(cursor: Cursor, kind: int, count: int, what: str) -> np.ndarray:
    if kind not in _NUMBERS:
        raise BadHeader(f"{what} has the unknown type {kind}")
    dtype = np.dtype(_NUMBERS[kind])
    cursor.check(count, dtype.itemsize, what)
    found = np.frombuffer(cursor.take(count * dtype.itemsize, what), dtype)
    if kind != _BOOL:
        return found
    if found.size and found.max() > 1:
        raise BadHeader(f"{what} is a boolean with the value {found.max()}")
    return found.view(np.bool_)


def _texts(cursor: Cursor, count: int, what: str) -> Texts:
    cursor.check(count, _LENGTH_BYTES, what)
    ends = np.empty(count, np.int64)
    content = bytearray()
    for number in range(count):
        text = cursor.take(cursor.u64(what), what)
        decoded(text, what)
        content += text
        ends[number] = len(content)
    return Texts(content, ends)
