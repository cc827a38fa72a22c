# SPDX-License-Identifier: Apache-2.0
"""The stages of a pipeline read their own layers, and each byte of a checkpoint is one stage's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.device import resolve_device
from rtp_llm.loader import load_model, plan_stages
from rtp_llm.loader.checkpoint import Checkpoint
from rtp_llm.models.causal_lm import CausalLM
from rtp_llm.testing.models.transformers_models import save_model


class _Bytes:
    """How many arrive."""

    def __init__(self) -> None:
        self.total = self.done = 0

    def start(self, total: int) -> None:
        self.total = total

    def advance(self, count: int) -> None:
        self.done += count

    def finish(self) -> None:
        assert self.done == self.total


def _load(folder: Path, stage: int, stages: int) -> tuple[CausalLM, int]:
    read = _Bytes()
    settings = ModelSettings(dtype="float32")
    device = resolve_device("cpu")
    model = load_model(
        folder, device=device, settings=settings, stage=(stage, stages), progress=read
    )
    return model, read.done


@pytest.mark.parametrize("tied", [False, True], ids=["", "tied"])
@pytest.mark.parametrize(
    "kind", ["llama", "gemma3", "gemma4_experts", "qwen3_moe", "deepseek_v3", "qwen3_next"]
)
def test_each_stage_reads_what_it_has(kind: str, tied: bool, tmp_path: Path) -> None:
    save_model(tmp_path, kind, tie_word_embeddings=tied)
    whole, total = _load(tmp_path, 0, 1)
    loaded = [_load(tmp_path, stage, 3) for stage in range(3)]
    assert sum(read for _, read in loaded) == total
    assert total == Checkpoint.open(tmp_path).num_bytes
    settings = ModelSettings(dtype="float32")
    layers = plan_stages(tmp_path, device=resolve_device("cpu"), settings=settings, stages=3)
    expected, found = dict(whole.named_parameters()), set()
    for (model, _), own in zip(loaded, layers, strict=True):
        for name, weight in model.named_parameters():
            assert torch.equal(weight, expected[name])
            found.add(name)
            if ".layers." in name:
                assert int(name.split(".")[2]) in own
    assert found == expected.keys()
