# SPDX-License-Identifier: Apache-2.0
"""EAGLE-3 heads against the same in plain PyTorch, and heads that are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rtp_llm.loader import WeightError
from rtp_llm.loader.checkpoint import CheckpointError
from rtp_llm.models.config import ModelConfigError, UnsupportedModelError
from rtp_llm.testing.models.contiguous_runner import ContiguousRunner
from rtp_llm.testing.models.eagle3_models import Eagle3Oracle, save_eagle3_head
from rtp_llm.testing.models.open_model import open_model
from rtp_llm.testing.models.transformers_models import random_prompt, save_model

torch.set_num_threads(2)


def save(tmp_path: Path, kind: str = "llama", **settings: Any) -> Eagle3Oracle:
    model = save_model(tmp_path / "model", kind)
    return save_eagle3_head(tmp_path / "head", model, **{"draft_vocab_size": 50, **settings})


def opened(tmp_path: Path) -> Any:
    return open_model(tmp_path / "model", eagle3=str(tmp_path / "head"))


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("llama", {}),
        ("mistral", {"norm_before_residual": True, "draft_vocab_size": 199}),
        ("qwen3", {"embedding": True, "hidden_size": 48, "head_dim": 16}),
        ("qwen3_moe", {"rope_theta": 500.0}),
        ("qwen3_5", {}),
    ],
    ids=str,
)
@pytest.mark.parametrize("chunk", [29, 7])
def test_what_a_prompt_gives(
    tmp_path: Path, kind: str, settings: dict[str, Any], chunk: int
) -> None:
    oracle = save(tmp_path, kind, **settings)
    model, prompt = opened(tmp_path), random_prompt(30)
    captured = oracle.captured(prompt[:-1])
    runner, ours = ContiguousRunner(model, 1, 64), []
    with torch.inference_mode():
        for at in range(0, 29, chunk):
            runner.step([prompt[at : min(29, at + chunk)]])
            ours.append(model.draft_states(captured[at : at + chunk]))
    expected = oracle.fc(captured)
    torch.testing.assert_close(torch.cat(ours), expected, rtol=1e-4, atol=1e-3)
    drafting = ContiguousRunner(model, 1, 64)
    parts = [
        drafting.draft(prompt[1 + at : 1 + at + chunk], expected[at : at + chunk])
        for at in range(0, 29, chunk)
    ]
    states = oracle(prompt[1:], expected)
    torch.testing.assert_close(torch.cat(parts), oracle.logits(states), rtol=1e-4, atol=1e-3)
    choices = torch.arange(len(oracle.offsets))
    assert model.drafts.tokens(choices).tolist() == (choices + oracle.offsets).tolist()


def change(tmp_path: Path, **values: Any) -> None:
    file = tmp_path / "head" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"vocab_size": 198}, ModelConfigError, "vocab_size must be 199"),
        ({"num_hidden_layers": 2}, ModelConfigError, "num_hidden_layers must be 1"),
        ({"draft_vocab_size": None}, UnsupportedModelError, "EAGLE-3 head of one Llama layer"),
        ({"architectures": ["Qwen3ForCausalLM"]}, UnsupportedModelError, "has Qwen3ForCausalLM"),
        ({"fc_norm": True}, UnsupportedModelError, "has fc_norm"),
        ({"eagle_aux_hidden_state_layer_ids": [0, 1]}, ModelConfigError, "three layers from 0"),
        ({"eagle_aux_hidden_state_layer_ids": [0, 1, 3]}, ModelConfigError, "three layers from 0"),
        ({"hidden_size": 32}, UnsupportedModelError, "has no embed_tokens"),
        ({"intermediate_size": 96}, WeightError, r"eagle3\.midlayer\.mlp\.up_proj\.weight is"),
        ({"draft_vocab_size": 51}, WeightError, r"eagle3\.lm_head\.weight is"),
    ],
    ids=str,
)
def test_heads_that_do_not_fit(
    tmp_path: Path, values: dict[str, Any], error: type[Exception], message: str
) -> None:
    save(tmp_path)
    change(tmp_path, **values)
    with pytest.raises(error, match=message):
        opened(tmp_path)


@pytest.mark.parametrize(
    "offsets",
    [None, torch.zeros(7, dtype=torch.int64), torch.full((50,), 150), torch.full((50,), -1)],
    ids=["none", "few", "beyond", "below"],
)
def test_offsets_that_make_no_sense(tmp_path: Path, offsets: torch.Tensor | None) -> None:
    save(tmp_path)
    file = tmp_path / "head" / "model.safetensors"
    tensors = load_file(file)
    del tensors["d2t"]
    save_file(tensors | ({} if offsets is None else {"d2t": offsets}), file)
    with pytest.raises(CheckpointError, match="d2t"):
        opened(tmp_path)


def test_offsets_come_from_the_file_of_the_weights(tmp_path: Path) -> None:
    oracle = save(tmp_path)
    other = {"d2t": torch.zeros(50, dtype=torch.int64)}
    save_file(other, tmp_path / "head" / "adapter.safetensors")  # which nothing names
    assert opened(tmp_path).drafts.d2t.tolist() == oracle.offsets.tolist()
