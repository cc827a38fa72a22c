# SPDX-License-Identifier: Apache-2.0
"""Experts as gpt-oss stores them: alternating rows, transposed floats, MXFP4."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rtp_llm import ops
from rtp_llm.layers.moe import LocalDispatcher
from rtp_llm.models.config import UnsupportedModelError
from rtp_llm.ops.moe.mxfp4_blocks import dequantize_rows
from rtp_llm.testing.models.mxfp4_checkpoints import store_as_mxfp4
from rtp_llm.testing.models.open_model import open_model
from rtp_llm.testing.models.transformers_models import save_model

SIZES = {"num_hidden_layers": 1, "intermediate_size": 96}
EXPERTS, PREFIX = 6, "model.layers.0.mlp.experts."


class Some:
    """Experts 4, 1 and 4 again, out of order, are here."""

    local_experts = (4, 1, 4)

    def dispatcher(self, index: int, config: Any) -> LocalDispatcher:
        dispatcher = LocalDispatcher(config.num_experts)
        dispatcher.local_experts = self.local_experts
        return dispatcher

    def steps(self, index: int, config: Any) -> tuple[()]:
        return ()

    of_drafts = None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(tmp_path / "model", "gpt_oss", **SIZES)
    return tmp_path / "model"


def experts_of(folder: Path, **options: Any) -> Any:
    return open_model(folder, **options).model.layers[0].mlp.experts


def halves(rows: torch.Tensor) -> torch.Tensor:
    """Rows of gate and up, which alternate in a file, as they lie in memory."""
    return torch.cat([rows[0::2], rows[1::2]])


@pytest.mark.parametrize("hooks", [None, Some()], ids=["all", "some"])
def test_floats_are_transposed_and_divided_into_gate_and_up(folder: Path, hooks: Any) -> None:
    stored = load_file(folder / "model.safetensors")
    experts = experts_of(folder, experts=hooks)
    for slot, expert in enumerate(range(EXPERTS) if hooks is None else hooks.local_experts):
        of_gate_up = stored[f"{PREFIX}gate_up_proj"][expert].T
        assert torch.equal(experts.gate_up.weight[slot], halves(of_gate_up))
        bias = stored[f"{PREFIX}gate_up_proj_bias"][expert]
        assert torch.equal(experts.gate_up.bias[slot], halves(bias))
        assert torch.equal(experts.down.weight[slot], stored[f"{PREFIX}down_proj"][expert].T)
        assert torch.equal(experts.down.bias[slot], stored[f"{PREFIX}down_proj_bias"][expert])


@pytest.mark.parametrize("hooks", [None, Some()], ids=["all", "some"])
@pytest.mark.parametrize("kept", [True, False])
def test_mxfp4_is_kept_or_becomes_the_same_floats(
    folder: Path, hooks: Any, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = store_as_mxfp4(folder)
    expected = experts_of(wide, experts=hooks)
    if not kept:
        has = ops.has_kernel
        monkeypatch.setattr(
            ops, "has_kernel", lambda name, *on: "mxfp4" not in name and has(name, *on)
        )
    experts = experts_of(folder, experts=hooks)
    for name in ("gate_up", "down"):
        found, floats = getattr(experts, name), getattr(expected, name)
        assert torch.equal(found.bias, floats.bias)
        weight = found.weight
        if kept:
            bits = 8 * (weight.nbytes + found.scale.nbytes)
            assert bits == 4.25 * floats.weight.numel()
            parts = (each.view(torch.uint8).flatten(0, 1) for each in (weight, found.scale))
            weight = dequantize_rows(*parts).view_as(floats.weight)
        assert torch.equal(weight, floats.weight)


def test_dummy_experts_are_in_mxfp4_too(folder: Path) -> None:
    store_as_mxfp4(folder)
    (folder / "model.safetensors").unlink()
    experts = experts_of(folder, load_format="dummy")
    parts = (each[0].view(torch.uint8) for each in (experts.down.weight, experts.down.scale))
    assert 0.015 < dequantize_rows(*parts).std() < 0.03
    assert not experts.gate_up.bias.any()


def test_what_is_not_supported_is_refused(folder: Path) -> None:
    store_as_mxfp4(folder)
    with pytest.raises(UnsupportedModelError, match="int8"):
        open_model(folder, quantization="int8")
    with pytest.raises(UnsupportedModelError, match="plain: it takes no mxfp4 weights"):
        open_model(folder, moe_strategy="plain")
    stored = load_file(folder / "model.safetensors")
    stored["model.norm.weight"] = torch.ones(64, dtype=torch.uint8)
    save_file(stored, folder / "model.safetensors")
    with pytest.raises(UnsupportedModelError, match=r"model\.norm\.weight is stored as U8"):
        open_model(folder)
