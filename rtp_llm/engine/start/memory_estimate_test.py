# SPDX-License-Identifier: Apache-2.0
"""The memory of FP8 weights that `explain` counts is what a start takes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rtp_llm.config.settings import Settings
from rtp_llm.device import resolve_device
from rtp_llm.engine.start import memory_estimate
from rtp_llm.engine.start.memory_plan import weight_bytes
from rtp_llm.testing.fp8_products import multiply_fp8_on_cpu
from rtp_llm.testing.models.fp8_checkpoints import BLOCKS, CHANNELS, Style, store_as_fp8
from rtp_llm.testing.models.open_model import open_model
from rtp_llm.testing.models.stored_checkpoints import PACKINGS, store_packed
from rtp_llm.testing.models.transformers_models import save_model

SIZES = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}


@pytest.mark.parametrize("style", [BLOCKS, CHANNELS], ids=["blocks", "channels"])
@pytest.mark.parametrize("products", [False, True])
def test_fp8_counts_as_the_device_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, style: Style, products: bool
) -> None:
    (tmp_path / "fp8").mkdir()
    save_model(tmp_path / "fp8", "qwen3", **SIZES)
    store_as_fp8(tmp_path / "fp8", dtype=torch.bfloat16, style=style)
    if products:
        multiply_fp8_on_cpu(monkeypatch.setattr)
    settings = Settings(model=str(tmp_path / "fp8"), dtype="bfloat16")
    counted = memory_estimate._weight_bytes(settings, torch.bfloat16, resolve_device("cpu"))
    taken = weight_bytes(open_model(tmp_path / "fp8", torch.bfloat16))
    assert counted == pytest.approx(taken, rel=0.05)  # rotations are not counted


@pytest.mark.parametrize(
    "packing", ["w8a8", "w8a16", "mxfp4", "modelopt nvfp4", "nested nf4", "mlx"]
)
def test_other_formats_count_as_the_device_keeps_them(tmp_path: Path, packing: str) -> None:
    folder = tmp_path / "stored"
    folder.mkdir()
    save_model(folder, "qwen3", **SIZES)
    store_packed(folder, PACKINGS[packing], dtype=torch.bfloat16)
    settings = Settings(model=str(folder), dtype="bfloat16")
    counted = memory_estimate._weight_bytes(settings, torch.bfloat16, resolve_device("cpu"))
    taken = weight_bytes(open_model(folder, torch.bfloat16))
    assert counted == pytest.approx(taken, rel=0.05, abs=67_000)  # of rotations
