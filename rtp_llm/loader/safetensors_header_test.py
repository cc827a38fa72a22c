# SPDX-License-Identifier: Apache-2.0
"""Broken and hostile headers, compared with the verdict of the safetensors library."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from rtp_llm.loader.safetensors_header import CheckpointError, read_header


def library_accepts(file: Path) -> bool:
    try:
        with safe_open(file, "np") as opened:
            opened.keys()
    except Exception:
        return False
    return True


def we_accept(file: Path) -> bool:
    try:
        read_header(file)
    except CheckpointError as error:
        assert str(file) in str(error)
        assert len(str(error)) < 600 + len(str(file))
        str(error).encode()
        return False
    return True


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def content(header: bytes, data: int = 8, length: int | None = None) -> bytes:
    prefix = len(header) if length is None else length
    return prefix.to_bytes(8, "little") + header + bytes(data)


def of(*tensors: dict[str, Any], data: int = 8, **more: Any) -> bytes:
    named = {f"t{number}": tensor for number, tensor in enumerate(tensors)}
    return content(json.dumps({**named, **more}).encode(), data)


GOOD = json.dumps({"a": entry()}).encode()
FILES: dict[str, tuple[bytes, bool]] = {
    "plain": (of(entry()), True),
    "metadata": (of(entry(), __metadata__={"format": "pt"}), True),
    "padded": (content(GOOD + b"   "), True),
    "nothing": (content(b"{}", 0), True),
    "a scalar": (of(entry(shape=[], offsets=[0, 4]), data=4), True),
    "an empty tensor": (of(entry(), entry(shape=[0, 5], offsets=[8, 8])), True),
    "other order": (of(entry(offsets=[8, 16]), entry(offsets=[0, 8]), data=16), True),
    "trailing bytes": (of(entry(), data=9), False),
    "cut off": (of(entry(), data=7), False),
    "overlap": (of(entry(), entry(offsets=[4, 12]), data=12), False),
    "the same place": (of(entry(), entry()), False),
    "a hole": (of(entry(), entry(offsets=[12, 20]), data=20), False),
    "a hole in front": (of(entry(offsets=[4, 12]), data=12), False),
    "backwards": (of(entry(offsets=[8, 0])), False),
    "three offsets": (of(entry(offsets=[0, 8, 8])), False),
    "negative offset": (of(entry(offsets=[-8, 0])), False),
    "fraction of a shape": (of(entry(shape=[2.0])), False),
    "exponent of a shape": (content(GOOD.replace(b"[2]", b"[2e0]")), False),
    "negative shape": (of(entry(shape=[-2])), False),
    "true shape": (of(entry(shape=[True, 2])), False),
    "text shape": (of(entry(shape="2")), False),
    "huge shape": (of(entry(shape=[2**63, 2**63, 0], offsets=[0, 0]), data=0), False),
    "shape beyond 64 bits": (of(entry(shape=[2**64, 0], offsets=[0, 0]), data=0), False),
    "wrong size": (of(entry(shape=[3])), False),
    "unknown type": (of(entry(dtype="F128")), False),
    "no type": (of(entry(dtype=None)), False),
    "type of another case": (of(entry(dtype="f32")), False),
    "missing shape": (content(b'{"a":{"dtype":"F32","data_offsets":[0,8]}}'), False),
    "a tensor twice": (content(GOOD[:-1] + b"," + GOOD[1:]), False),
    "a field twice": (content(GOOD.replace(b'"shape"', b'"dtype":"F32","shape"')), False),
    "metadata of numbers": (of(entry(), __metadata__={"a": 1}), False),
    "metadata as text": (of(entry(), __metadata__="pt"), False),
    "a list": (content(b"[]", 0), False),
    "a space in front": (content(b" " + GOOD), False),
    "a byte order mark": (content(b"\xef\xbb\xbf" + GOOD), False),
    "UTF-16": (content(GOOD.decode().encode("utf-16-le")), False),
    "not UTF-8": (content(GOOD.replace(b'"a"', b'"\xff"')), False),
    "half a surrogate pair": (content(GOOD.replace(b'"a"', b'"\\ud800"')), False),
    "NaN": (content(GOOD.replace(b'"dtype"', b'"x":NaN,"dtype"')), False),
    "trailing text": (content(GOOD + b"x"), False),
    "deep": (content(b'{"a":' + b"[" * 10**5), False),
    "garbage": (content(b"{" + bytes(range(256)) * 40), False),
    "no header": (b"", False),
    "half a length": (b"\x08\0\0", False),
    "length beyond the file": (content(GOOD, length=2**63), False),
    "length beyond the limit": (content(GOOD, length=100_000_001), False),
    "length zero": (content(b"", 8), False),
}


@pytest.mark.parametrize("name", FILES)
def test_verdicts_are_those_of_the_library_or_stricter(tmp_path, name):
    content, accepted = FILES[name]
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    assert we_accept(file) == accepted
    assert accepted <= library_accepts(file)


@pytest.mark.parametrize(
    "dtype", ["BOOL", "U8", "I8", "I16", "U16", "I32", "U32", "I64", "U64", "F8_E5M2", "C64"]
)
def test_every_type_of_the_format_is_known(tmp_path, dtype):
    size = {"8": 8, "1": 2, "3": 4, "6": 8}.get(dtype[1], 1)
    size = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1}.get(dtype, size)
    file = tmp_path / "model.safetensors"
    file.write_bytes(of(entry(dtype=dtype, shape=[3], offsets=[0, 3 * size]), data=3 * size))
    assert library_accepts(file)
    assert we_accept(file)


PARTS = [b"-", b"1", b"0", b".0", b"e1", b"[", b"]", b"{", b"}", b",", b'"', b"null", b"\\u0000"]
PARTS += [b"true", b" ", b"\n", b"\xff", b"\\ud800", b"NaN", b'"a":1,', b"18446744073709551616"]


def mutated(header: bytes, draw: random.Random) -> bytes:
    """`header` with one to three places changed or taken out."""
    made = bytearray(header)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        at, size = draw.randrange(len(made)), draw.choice((0, 1, 1, 2, 8))
        part = draw.choice(PARTS) if draw.random() < 0.7 else bytes([draw.randrange(256)])
        made[at : at + size] = b"" if draw.random() < 0.2 else part
    return bytes(made)


def test_mutated_headers_are_refused_where_the_library_refuses_them(tmp_path):
    good = tmp_path / "good.safetensors"
    weights = {f"layers.{n}.weight": torch.ones(2, n + 1) for n in range(3)}
    save_file({**weights, "i": torch.ones(4, dtype=torch.int8)}, good, {"format": "pt"})
    whole = good.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header, data = whole[8 : 8 + length], whole[8 + length :]
    draw = random.Random(13)
    file = tmp_path / "mutated.safetensors"
    verdicts = {True: 0, False: 0}
    for _ in range(4000):
        text = mutated(header, draw)
        stated = len(text) if draw.random() < 0.95 else draw.choice((0, 1, length, 2**40))
        file.write_bytes(stated.to_bytes(8, "little") + text + data)
        ours = we_accept(file)
        verdicts[ours] += 1
        if ours:
            assert library_accepts(file), text
    assert min(verdicts.values()) > 50
