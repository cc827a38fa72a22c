# SPDX-License-Identifier: Apache-2.0
"""`rtp-llm explain` on each kind of layer: formats, bytes and the error of quantising."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from rtp_llm.device.cpu import CpuDevice
from rtp_llm.loader import explain, load_model
from rtp_llm.testing.models.encoder_models import save_encoder
from rtp_llm.testing.models.open_model import model_settings
from rtp_llm.testing.models.stored_checkpoints import PACKINGS, store_packed
from rtp_llm.testing.models.transformers_models import save_model

LINE = re.compile(r"  ([\w ]+): ([\d.]+) MiB of (.+)")
SIZES = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 2048}


def lines_of(folder: Path, **settings: Any) -> dict[str, tuple[float, str]]:
    wanted = model_settings(torch.bfloat16, **settings)
    text = explain(folder, device=CpuDevice(), settings=wanted)
    found = (LINE.fullmatch(line) for line in text.splitlines())
    return {each[1]: (float(each[2]), each[3]) for each in found if each}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("floats") / "model"
    save_model(made, "llama", **SIZES)
    return made


def test_floats(folder: Path) -> None:
    found = lines_of(folder)
    assert {how for _, how in found.values()} == {"bfloat16"}
    assert list(found) == ["embedding", "logits head", "norms", "attention", "MLP"]
    model = load_model(folder, device=CpuDevice(), settings=model_settings(torch.bfloat16))
    kept = sum(each.nbytes for each in model.state_dict().values()) / 2**20
    assert sum(size for size, _ in found.values()) == pytest.approx(kept, abs=0.3)


@pytest.mark.parametrize(
    ("quantization", "low", "high"),
    [("int8", 0.2, 1.2), ("w8a8_int8", 0.2, 1.2), ("int4", 5, 14)],
)
def test_the_error_of_quantising(folder: Path, quantization: str, low: float, high: float) -> None:
    floats, found = lines_of(folder), lines_of(folder, quantization=quantization)
    assert found["embedding"] == floats["embedding"]
    for kind in ("attention", "MLP"):
        size, how = found[kind]
        assert size < 0.6 * floats[kind][0]
        name, _, error = how.partition(", relative error ")
        assert name == quantization
        assert low < float(error.removesuffix("%")) < high


def test_stored_formats(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save_model(folder, "qwen3", **SIZES)
    store_packed(folder, PACKINGS["w8a8"])
    found = lines_of(folder)
    unknown = "error unknown"
    assert found["MLP"][1] == f"int8 channels as stored, {unknown}"
    assert found["embedding"][1] == "bfloat16"
    folder = tmp_path / "other"
    save_model(folder, "qwen3_moe", **SIZES)
    store_packed(folder, PACKINGS["w8a8"])
    assert lines_of(folder)["experts"][1] == f"int8 channels as stored, {unknown}"


def test_norms_of_encoders_and_gates_of_shared_experts(tmp_path: Path) -> None:
    kinds = ["embedding", "norms", "attention", "MLP"]
    save_encoder(tmp_path / "bert", "bert")
    assert list(lines_of(tmp_path / "bert")) == kinds
    save_model(tmp_path / "moe", "qwen2_moe", shared_expert_intermediate_size=48)
    kinds = ["embedding", "logits head", "norms", "routers", "shared experts", "experts"]
    assert list(lines_of(tmp_path / "moe")) == [*kinds, "attention"]
