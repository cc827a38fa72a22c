# SPDX-License-Identifier: Apache-2.0
"""Layers of multi-token prediction against the same in plain PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rtp_llm.loader import WeightError
from rtp_llm.models.refusals import UnsupportedModelError
from rtp_llm.testing.light_transformers import light_transformers
from rtp_llm.testing.models.contiguous_runner import ContiguousRunner
from rtp_llm.testing.models.mtp_models import save_mtp_model
from rtp_llm.testing.models.open_model import open_model
from rtp_llm.testing.models.parity import HYBRID_TOLERANCE
from rtp_llm.testing.models.transformers_models import random_prompt, save_model

with light_transformers():
    from transformers.cache_utils import MtpCache
    from transformers.modeling_layers import MtpModel

torch.set_num_threads(2)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("qwen3_next", {}),
        ("qwen3_next", {"mlp_only_layers": [0, 1], "tie_word_embeddings": True}),
        ("qwen3_5", {"attention_bias": True}),
        ("qwen3_5_moe", {"tie_word_embeddings": True}),
        ("deepseek_v3", {}),
        ("deepseek_v3", {"q_lora_rank": None}),
        ("glm4_moe", {}),
    ],
    ids=str,
)
@pytest.mark.parametrize("chunk", [29, 7])
def test_what_a_prompt_gives(
    tmp_path: Path, kind: str, settings: dict[str, Any], chunk: int
) -> None:
    _, oracle = save_mtp_model(tmp_path, kind, **settings)
    prompt = random_prompt(30)
    hidden = oracle.hidden_states(prompt[:-1])
    runner = ContiguousRunner(open_model(tmp_path, mtp=True), 1, 64)
    parts = [
        runner.draft(prompt[1 + at : 1 + at + chunk], hidden[at : at + chunk])
        for at in range(0, len(hidden), chunk)
    ]
    expected = oracle.logits(oracle(prompt[1:], hidden))
    torch.testing.assert_close(torch.cat(parts), expected, **HYBRID_TOLERANCE)


@pytest.mark.parametrize("settings", [{}, {"q_lora_rank": None, "topk_group": 3}], ids=str)
@torch.inference_mode()
def test_logits_are_those_of_transformers_own_mtp_model(
    tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads the checkpoint by itself: a prompt, then token by token. Of the architectures that
    it knows DeepSeek-V3 is the one that is served here."""
    saved, _ = save_mtp_model(tmp_path, "deepseek_v3", **settings)
    layer = rf"model\.layers\.{saved.config.num_hidden_layers}\..*"  # of the published model: 61
    monkeypatch.setattr(type(saved), "_keys_to_ignore_on_load_unexpected", [layer])
    main = type(saved).from_pretrained(tmp_path, attn_implementation="eager").eval()
    theirs: Any = MtpModel.from_pretrained(main)
    theirs.eval()
    cache = MtpCache(config=main.config.get_mtp_config())
    prompt = random_prompt(40)
    hidden = main.model(input_ids=torch.tensor([prompt[:-1]])).last_hidden_state[0]
    runner = ContiguousRunner(open_model(tmp_path, mtp=True), 1, 64)
    for begin, end in ((0, 30), *((at, at + 1) for at in range(30, 39))):
        ids, positions = torch.tensor([prompt[1:]]), 1 + torch.arange(39)[None]
        part = slice(begin, end)
        _, expected, _ = theirs(ids[:, part], hidden[None, part], None, positions[:, part], cache)
        drafted = runner.draft(prompt[1 + begin : 1 + end], hidden[begin:end])[-1]
        torch.testing.assert_close(drafted, expected[0, -1].float(), **HYBRID_TOLERANCE)


def test_a_folder_without_the_layer_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path, "qwen3_5", mtp_num_hidden_layers=0)
    with pytest.raises(UnsupportedModelError, match=r"--speculative mtp .*it has 0"):
        open_model(tmp_path, mtp=True)


def test_missing_weights_are_named(tmp_path: Path) -> None:
    save_model(tmp_path, "qwen3_5", mtp_num_hidden_layers=1)
    with pytest.raises(WeightError, match=r"missing: mtp\.fc\.weight"):
        open_model(tmp_path, mtp=True)


def test_without_drafts_the_layer_is_left_aside(tmp_path: Path) -> None:
    save_mtp_model(tmp_path, "qwen3_5")
    model = open_model(tmp_path)
    assert not any("mtp" in name for name, _ in model.named_parameters())
    assert len(model.cache_groups().specs) == model.config.num_layers
