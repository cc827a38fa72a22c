# SPDX-License-Identifier: Apache-2.0
"""The memory of FP8 weights that `explain` counts is what a start takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from rtp_llm import ops
from rtp_llm.config.settings import Settings
from rtp_llm.device import resolve_device
from rtp_llm.engine.start import memory_estimate
from rtp_llm.engine.start.memory_plan import weight_bytes
from rtp_llm.loader import explain
from rtp_llm.testing.fp8_products import multiply_fp8_on_cpu
from rtp_llm.testing.models.fp8_checkpoints import BLOCKS, CHANNELS, Style, store_as_fp8
from rtp_llm.testing.models.open_model import model_settings, open_model
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


@pytest.mark.parametrize("columns", [256, 192])
@pytest.mark.parametrize("packing", ["mxfp4", "nvfp4"])
def test_formats_in_tiles_count_as_gpus_keep_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packing: str, columns: int
) -> None:
    """With the kernels of tiles, and none of 4-bit numbers; 192 columns do not fill tiles."""
    has_kernel = ops.has_kernel
    monkeypatch.setattr(
        ops,
        "has_kernel",
        lambda name, kind: (
            name.startswith("tiled_wna16")
            or (not name.startswith(("mxfp4", "table4")) and has_kernel(name, kind))
        ),
    )
    folder = tmp_path / "stored"
    folder.mkdir()
    save_model(folder, "qwen3", **{**SIZES, "hidden_size": columns, "intermediate_size": 2048})
    store_packed(folder, PACKINGS[packing], dtype=torch.bfloat16)
    device = resolve_device("cpu")
    settings = Settings(model=str(folder), dtype="bfloat16")
    counted = memory_estimate._weight_bytes(settings, torch.bfloat16, device)
    taken = weight_bytes(open_model(folder, torch.bfloat16))
    assert counted == pytest.approx(taken, rel=0.02, abs=67_000)  # of rotations
    text = explain(folder, device=device, settings=model_settings(torch.bfloat16))
    assert ("its rows or columns do not fill tiles" in text) == (columns == 192)
    bits = {"mxfp4": 5 + 16 / 32, "nvfp4": 6 + 16 / 16}[packing]
    found = re.search(r"([0-9.]+) MiB of \S+ blocks as they are \(([0-9.]+) MiB in memory\)", text)
    assert found is not None
    assert float(found[2]) == pytest.approx(float(found[1]) * bits / 4, abs=0.15)
