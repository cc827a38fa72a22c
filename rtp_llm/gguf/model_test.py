# SPDX-License-Identifier: Apache-2.0
"""Models in several GGUF files, and what is said about a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from rtp_llm.gguf import GgufError, describe, open_model
from rtp_llm.testing.gguf.writer import Tensor, Typed, write

GENERAL = {"general.architecture": "qwen3", "general.name": "Tiny"}


def split(folder: Path, **changes: int) -> list[Path]:
    """A model in three parts; `changes`: number, count, total in place of the right ones."""
    files = []
    for number in range(3):
        metadata = GENERAL if number == 0 else {}
        keys = {
            "split.no": Typed("u16", changes.get("number", number)),
            "split.count": Typed("u16", changes.get("count", 3)),
            "split.tensors.count": Typed("i32", changes.get("total", 4)),
        }
        tensors = {f"blk.{number}.ffn_up.weight": Tensor("Q8_0", (2, 32))}
        if number == 2:
            tensors["output.weight"] = Tensor("F32", (1024, 1024))
        file = folder / f"tiny-{number + 1:05}-of-00003.gguf"
        files.append(write(file, {**metadata, **keys}, tensors))
    return files


@pytest.mark.parametrize("named", [0, 1, 2])
def test_any_part_opens_the_whole_model(tmp_path, named):
    files = split(tmp_path)
    model = open_model(files[named])
    assert model.files == tuple(files) and model.metadata.architecture == "qwen3"
    assert [tensor.file for tensor in model.tensors.values()] == [*files, files[2]]
    assert model.num_bytes == 3 * 68 + 2**22


def test_parts_that_do_not_fit_are_refused(tmp_path):
    files = split(tmp_path, total=5)
    with pytest.raises(GgufError, match="states 5 tensors; its parts have 4"):
        open_model(files[0])
    with pytest.raises(GgufError, match="is part 0 of 3; not 1 of 3"):
        open_model(split(tmp_path, number=0)[0])
    with pytest.raises(GgufError, match=r"one of 60000 parts: it must be named like NAME-00001"):
        open_model(split(tmp_path, count=60000)[0])
    files = split(tmp_path)
    files[1].write_bytes(
        files[0].read_bytes().replace(b"split.no\x02\0\0\0\0", b"split.no\x02\0\0\0\1")
    )
    with pytest.raises(GgufError, match=r"blk\.0\.ffn_up\.weight is in .*00001.* and again in"):
        open_model(files[0])
    files[1].unlink()
    with pytest.raises(GgufError, match=r"00002-of-00003\.gguf: it is missing"):
        open_model(files[0])
    renamed = files[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(GgufError, match="must be named like"):
        open_model(renamed)


def test_a_single_file_may_have_any_name(tmp_path):
    model = open_model(write(tmp_path / "tiny-00001-of-00003.gguf", GENERAL, {"a": Tensor()}))
    assert list(model.tensors) == ["a"]


def test_description(tmp_path):
    tensors = {
        "a": Tensor("Q4_K", (4096, 256)),
        "b": Tensor("Q4_K", (4096, 256)),
        "c": Tensor("IQ2_XS", (4096, 256)),
        "d": Tensor("F32", (4096,)),
    }
    model = open_model(write(tmp_path / "m.gguf", GENERAL, tensors))
    assert describe(model) == [
        "qwen3 (Tiny) in 1 GGUF file: 3,149,824 weights in 1.4 MiB, 3.81 bits each",
        "  Q4_K: 2 tensors, 1.1 MiB",
        "  IQ2_XS: 1 tensor, 0.3 MiB; cannot be used: its weights are entries of a codebook; "
        "take a file of Q4_K_M or Q8_0",
        "  F32: 1 tensor, 0.0 MiB",
    ]


def test_description_of_a_file_without_tensors(tmp_path):
    model = open_model(write(tmp_path / "m.gguf", {"general.architecture": "llama"}, {}))
    assert describe(model) == ["llama in 1 GGUF file: 0 weights"]


def test_the_recipe_is_that_of_the_file_or_the_type_of_most_bytes(tmp_path):
    """A recipe none of whose types is in the file is that of what it was converted from."""
    tensors = {"a": Tensor("Q8_0", (8, 32)), "b": Tensor("F32", (8,))}
    for number, name in ((15, "Q8_0"), (7, "Q8_0"), (999, "Q8_0"), (None, "Q8_0"), (1, "Q8_0")):
        more = {} if number is None else {"general.file_type": number}
        model = open_model(write(tmp_path / "a.gguf", {**GENERAL, **more}, tensors))
        assert model.recipe == name
        assert model.num_weights == 8 * 32 + 8
    tensors |= {"c": Tensor("Q4_K", (1, 256))}
    metadata = {**GENERAL, "general.file_type": 15}
    assert open_model(write(tmp_path / "a.gguf", metadata, tensors)).recipe == "Q4_K_M"
