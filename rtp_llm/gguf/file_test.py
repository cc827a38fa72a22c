# SPDX-License-Identifier: Apache-2.0
"""Headers of GGUF files: right, broken and hostile ones."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest

from rtp_llm.gguf import GgufError
from rtp_llm.gguf.file import read_file
from rtp_llm.gguf.values import Texts
from rtp_llm.testing.gguf.writer import Tensor, Typed, packed, text, value, write

GOOD = {"general.architecture": "llama"}


def read(file: Path, content: bytes):
    file.write_bytes(content)
    return read_file(file)


def test_values_of_every_type(tmp_path):
    metadata = {
        "u8": Typed("u8", 255),
        "i8": Typed("i8", -128),
        "u16": Typed("u16", 65535),
        "i16": Typed("i16", -2),
        "u32": 2**32 - 1,
        "i32": Typed("i32", -3),
        "f32": 0.5,
        "bool": True,
        "string": "\u00e9\U0001f600",
        "u64": Typed("u64", 2**64 - 1),
        "i64": Typed("i64", -(2**63)),
        "f64": Typed("f64", 0.1),
    }
    read_back = read(tmp_path / "m.gguf", packed(metadata, {})).metadata.values
    assert read_back == {k: v.value if isinstance(v, Typed) else v for k, v in metadata.items()}
    assert read_back["bool"] is True


def test_arrays(tmp_path):
    metadata = {
        "texts": ["", "\u2581a", "\u00e9"],
        "none": Typed("string", []),
        "scores": [0.25, -1.0],
        "flags": [True, False],
        "wide": Typed("i64", [-1, 2**40]),
    }
    found = read(tmp_path / "m.gguf", packed(metadata, {})).metadata
    texts = found.texts("texts")
    assert isinstance(texts, Texts)
    assert list(texts) == metadata["texts"] == [texts[0], texts[1], texts[-1]]
    assert texts[1:] == metadata["texts"][1:]
    with pytest.raises(IndexError):
        texts[3]
    assert list(found.texts("none") or ()) == [] and found.texts("nowhere") is None
    np.testing.assert_array_equal(found.numbers("scores"), np.float32([0.25, -1.0]))
    assert found.numbers("flags").tolist() == [True, False]
    assert found.numbers("wide").tolist() == [-1, 2**40]


def test_tensors_lie_at_aligned_places(tmp_path):
    tensors = {
        "blk.0.attn_q.weight": Tensor("Q4_K", (3, 512), b"q" * 864),
        "output_norm.weight": Tensor("F32", (5,), b"n" * 20),
        "blk.0.ffn_up_exps.weight": Tensor("Q8_0", (2, 3, 64), b"e" * 408),
        "scalar": Tensor("F16", (), b"ss"),
    }
    content = packed({**GOOD, "general.alignment": 64}, tensors, alignment=64)
    found = read(tmp_path / "m.gguf", content)
    assert [tensor.name for tensor in found.tensors] == list(tensors)
    for tensor in found.tensors:
        expected = tensors[tensor.name]
        assert (tensor.type.name, tensor.shape) == (expected.kind, expected.shape)
        assert tensor.offset % 64 == 0 and tensor.file == tmp_path / "m.gguf"
        assert content[tensor.offset : tensor.offset + tensor.size] == expected.data


def test_a_file_of_version_2_and_one_with_nothing_after_its_header(tmp_path):
    assert read(tmp_path / "m.gguf", packed(GOOD, {}, version=2)).metadata.architecture == "llama"
    assert read(tmp_path / "n.gguf", packed({}, {})).tensors == ()


HUGE = 2**64 - 1
ONE = {"a": Tensor()}
BROKEN: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "the magic number needs 4 bytes and 0 are left"),
    "another format": (b"PK\x03\x04" + bytes(40), "not a GGUF file: it begins with"),
    "a pointer": (b"version https://git-lfs", "Git LFS pointer"),
    "old": (b"tjgg" + bytes(40), "left in 2023"),
    "version 1": (packed({}, {}, version=1), "version 1"),
    "version 4": (packed({}, {}, version=4), "version 4"),
    "big-endian": (packed({}, {}, version=3 << 24), "big-endian"),
    "half a count": (packed(GOOD, {})[:12], "the number of tensors needs 8 bytes and 4"),
    "many keys": (packed(GOOD, {}, num_keys=HUGE), f"a table of {HUGE} keys"),
    "many tensors": (packed(GOOD, ONE, num_tensors=2**61), f"a table of {2**61} tensors"),
    "a key too many": (packed(GOOD, {}, num_keys=2), "is empty"),
    "a key too few": (packed({"b": 1, **GOOD}, ONE, num_keys=1), "8 axes"),
    "a long key": (packed({"k" * 65536: 1}, {}), "has 65536 bytes; at most 65535"),
    "a key twice": (
        packed({"b": 1, "c": value(1) + text("b") + value(2)}, {}, num_keys=3),
        "twice",
    ),
    "a key in Latin-1": (packed({"b": 1}, {}).replace(text("b"), text(b"\xe9")), "not UTF-8"),
    "an unknown type": (packed({"b": struct.pack("<IQ", 13, 0)}, {}), "b has the unknown type 13"),
    "a boolean of 2": (packed({"b": struct.pack("<IB", 7, 2)}, {}), "boolean with the value 2"),
    "a long text": (packed({"b": struct.pack("<IQ", 8, HUGE)}, {}), f"b needs {HUGE} bytes"),
    "no UTF-8": (packed({"b": struct.pack("<I", 8) + text(b"\xff")}, {}), "b is not UTF-8"),
    "a long array": (packed({"b": struct.pack("<IIQ", 9, 0, 2**62)}, {}), f"b needs {2**62}"),
    "many texts": (packed({"b": struct.pack("<IIQ", 9, 8, HUGE)}, {}), "b needs"),
    "arrays of arrays": (packed({"b": struct.pack("<IIQ", 9, 9, 0)}, {}), "array of arrays"),
    "array of unknowns": (packed({"b": struct.pack("<IIQ", 9, 77, 0)}, {}), "unknown type 77"),
    "alignment 0": (packed({"general.alignment": 0}, ONE), "power of two; not 0"),
    "alignment 48": (packed({"general.alignment": 48}, ONE), "power of two; not 48"),
    "alignment as text": (packed({"general.alignment": "32"}, ONE), "must be an integer"),
    "huge alignment": (packed({"general.alignment": 2**31}, ONE), "ends at"),
    "no name": (packed({}, {"": Tensor()}), "has no name"),
    "a long name": (packed({}, {"n" * 65: Tensor()}), "has 65 bytes; at most 64"),
    "five axes": (packed({}, {"a": Tensor(shape=(1,) * 5)}), "5 axes; at most 4"),
    "an empty axis": (packed({}, {"a": Tensor(shape=(3, 0))}), "empty axis"),
    "too many weights": (packed({}, {"a": Tensor("F32", (2**32,) * 4, b"")}), "no file holds"),
    "part of a block": (packed({}, {"a": Tensor("Q4_K", (2, 128), b"")}), "Q4_K has blocks of 256"),
    "unknown type": (packed({}, {"a": Tensor(kind_id=4)}), "a has the unknown type 4"),
    "an odd offset": (packed({}, {"a": Tensor(offset=16)}), "no multiple of 32"),
    "beyond the file": (packed({}, {"a": Tensor(offset=2**63)}), "cut off: a ends at"),
    "cut off": (packed({}, {"a": Tensor(shape=(32,))})[:-1], "cut off: a ends at"),
    "an overlap": (packed({}, {"a": Tensor(shape=(16,)), "b": Tensor(offset=32)}), "b overlaps"),
    "the same place": (packed({}, {"a": Tensor(), "b": Tensor(offset=0)}), "overlaps"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_refused(tmp_path, name):
    content, message = BROKEN[name]
    file = tmp_path / "m.gguf"
    with pytest.raises(GgufError) as error:
        read(file, content)
    assert str(file) in str(error.value) and message in str(error.value)
    assert len(str(error.value)) < 400 + len(str(file))


def test_a_tensor_twice(tmp_path):
    both = packed({}, {"a": Tensor(), "b": Tensor()}).replace(text("b"), text("a"))
    with pytest.raises(GgufError, match="the tensor a comes twice"):
        read(tmp_path / "m.gguf", both)


def test_a_table_that_would_take_more_memory_than_the_file_is_refused(tmp_path):
    file = tmp_path / "m.gguf"
    file.write_bytes(packed({}, {}, num_tensors=10**8))
    os.truncate(file, 2**33)  # a hole: takes no space
    with pytest.raises(GgufError, match="headers have at most 536870912"):
        read_file(file)
    file.write_bytes(packed({}, {}, num_tensors=10**6))
    os.truncate(file, 2**33)
    with pytest.raises(GgufError, match="has 1000000 tensors; at most 100000"):
        read_file(file)


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(GgufError, match="missing"):
        read_file(tmp_path / "m.gguf")
    with pytest.raises(GgufError, match="a directory"):
        read_file(tmp_path)


def test_metadata_of_another_type_is_refused(tmp_path):
    metadata = {"general.architecture": "llama", "n": 3, "x": float("nan"), "a": [1, 2]}
    found = read_file(write(tmp_path / "m.gguf", metadata, {})).metadata
    assert found.of_model("block_count") == "llama.block_count"
    assert (found.integer("n"), found.number("n"), found.flag("none")) == (3, 3.0, None)
    for wrong in (
        lambda: found.text("n"),
        lambda: found.integer("general.architecture"),
        lambda: found.number("x"),
        lambda: found.flag("n"),
        lambda: found.texts("a"),
        lambda: found.numbers("n"),
    ):
        with pytest.raises(GgufError, match=r"m\.gguf: .* must be a"):
            wrong()
    with pytest.raises(GgufError, match="an array of 2"):
        found.integer("a")


def test_a_file_without_architecture(tmp_path):
    with pytest.raises(GgufError, match="does not say its architecture"):
        _ = read_file(write(tmp_path / "m.gguf", {}, {})).metadata.architecture
