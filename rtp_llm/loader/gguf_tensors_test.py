# SPDX-License-Identifier: Apache-2.0
"""The tensors of GGUF files as a checkpoint, and changes to their rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rtp_llm.layers.weights.targets import RowsTarget
from rtp_llm.loader.checkpoint import Checkpoint
from rtp_llm.loader.row_changes import ChangingTarget, HalvesInTurn, OneAdded
from rtp_llm.models.config import UnsupportedModelError
from rtp_llm.testing.gguf.writer import Tensor, write

_SIZES = {"block_count": 4, "embedding_length": 256}
_SIZES |= {"attention.head_count": 4, "attention.key_length": 8}


def _checkpoint(folder: Path, architecture: str, tensors: dict[str, Tensor]) -> Checkpoint:
    values = {f"{architecture}.{key}": value for key, value in _SIZES.items()}
    metadata = {"general.architecture": architecture, **values}
    return Checkpoint.open(write(folder / "a.gguf", metadata, tensors))


def test_experts_lie_one_after_the_other(tmp_path: Path) -> None:
    tensors = {"blk.3.ffn_up_exps.weight": Tensor("Q4_K", (5, 6, 512))}
    checkpoint = _checkpoint(tmp_path, "qwen3moe", tensors)
    entries = list(checkpoint.tensors.values())
    names = [f"model.layers.3.mlp.experts.{n}.up_proj" for n in range(5)]
    assert list(checkpoint.formats) == names
    assert [each.name for each in entries] == [f"{name}.blocks" for name in names]
    assert {each.shape for each in entries} == {(6, 288)}
    assert {each.dtype for each in entries} == {torch.uint8}
    assert [each.offset - entries[0].offset for each in entries] == [n * 1728 for n in range(5)]
    stored = checkpoint.formats[names[4]]
    assert (stored.name, stored.weights_in((6, 288))) == ("gguf_q4_k", 6 * 512)


def test_floats_have_their_type_and_unknown_names_stay(tmp_path: Path) -> None:
    tensors = {"blk.0.attn_q.weight": Tensor("F16", (32, 256)), "blk.0.odd.weight": Tensor()}
    tensors |= {"output_norm.weight": Tensor("BF16", (256,)), "rope_freqs.weight": Tensor()}
    tensors |= {"cls.output.weight": Tensor("Q8_0", (2, 256))}
    checkpoint = _checkpoint(tmp_path, "llama", tensors)
    found = {name: (each.dtype, each.change) for name, each in checkpoint.tensors.items()}
    assert found == {
        "model.layers.0.self_attn.q_proj.weight": (torch.float16, HalvesInTurn(8)),
        "model.norm.weight": (torch.bfloat16, None),
        "blk.0.odd.weight": (torch.float32, None),
    }
    assert not checkpoint.formats


def test_types_that_cannot_be_computed_are_refused_by_name(tmp_path: Path) -> None:
    tensors = {"blk.0.ffn_up.weight": Tensor("IQ2_XXS", (2, 256))}
    words = r"GGUF tensor type is not supported.*blk\.0\.ffn_up\.weight is IQ2_XXS: .*codebook"
    with pytest.raises(UnsupportedModelError, match=words):
        _checkpoint(tmp_path, "qwen3", tensors)


def test_rows_in_turn_become_halves() -> None:
    """Heads of 6 rows, of blocks or of numbers, and numbers without columns."""
    halves = torch.arange(24).view(12, 2)
    in_turn = halves.view(2, 2, 3, 2).transpose(1, 2).reshape(12, 2)
    assert torch.equal(HalvesInTurn(6).apply(in_turn), halves)
    assert torch.equal(HalvesInTurn(6).apply(in_turn[:, 0]), halves[:, 0])


def test_changed_rows_arrive_in_whole_heads() -> None:
    weight = torch.zeros(8)
    target = ChangingTarget(RowsTarget(weight), HalvesInTurn(4))
    assert (target.rows_together, target.shape, target.destination(0, 8)) == (4, (8,), None)
    target.write(4, torch.tensor([1.0, 3.0, 2.0, 4.0]))
    assert weight.tolist() == [0, 0, 0, 0, 1, 2, 3, 4]
    ChangingTarget(RowsTarget(weight), OneAdded()).write(
        0, torch.tensor([1.5], dtype=torch.float16)
    )
    assert weight[0] == 0.5
