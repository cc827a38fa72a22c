# SPDX-License-Identifier: Apache-2.0
"""A small decoder with mixtures of experts: grouped products give what plain ones do, in graphs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from rtp_llm.device import resolve_device
from rtp_llm.layers import MoeBlock, RMSNorm
from rtp_llm.layers.moe.plain import PlainExecutor
from rtp_llm.models.causal_lm import CausalLM
from rtp_llm.testing.gpu import captured
from rtp_llm.testing.models.contiguous_runner import ContiguousRunner
from rtp_llm.testing.models.open_model import open_model
from rtp_llm.testing.models.transformers_models import (
    expected_logits,
    random_prompt,
    save_model,
)
from rtp_llm.testing.operator_checks import DEVICE

KINDS = ("deepseek_v2", "deepseek_v3", "mixtral", "qwen2_moe", "qwen3_moe")
every_kind = pytest.mark.parametrize("kind", KINDS)


def small_model(folder: Path, kind: str, dtype: torch.dtype) -> tuple[CausalLM, Tensor]:
    """The model, and what transformers makes of the prompt in float32."""
    with torch.device("cpu"):
        reference = save_model(folder, kind, num_hidden_layers=2)
        exact = expected_logits(reference, prompt())
    return open_model(folder, dtype, device=resolve_device(DEVICE)), exact


def prompt() -> list[int]:
    with torch.device("cpu"):
        return random_prompt(53)


def norm_of(model: CausalLM, size: int) -> RMSNorm:
    norms = (module for module in model.modules() if isinstance(module, RMSNorm))
    return next(norm for norm in norms if norm.weight.numel() == size)


def blocks(model: CausalLM) -> list[MoeBlock]:
    return [module for module in model.modules() if isinstance(module, MoeBlock)]


@every_kind
def test_logits_in_float32_are_those_of_transformers(tmp_path: Path, kind: str) -> None:
    model, exact = small_model(tmp_path, kind, torch.float32)
    assert {block.executor.name for block in blocks(model)} == {"plain"}
    for chunk in (None, 16):
        ours = ContiguousRunner(model, 1, 64).prefill(prompt(), chunk)
        torch.testing.assert_close(ours.cpu(), exact, rtol=1e-3, atol=2e-3)


@every_kind
def test_the_grouped_products_are_the_plain_ones(tmp_path: Path, kind: str) -> None:
    model, _ = small_model(tmp_path, kind, torch.bfloat16)
    for block in blocks(model):
        if block.executor.name == "plain":
            pytest.skip("no grouped products on this device")
        plain = PlainExecutor(block.executor.context, block.executor.weights)
        for tokens in (1, 3, 40, 700):
            x = torch.randn(tokens, block.config.hidden_size).bfloat16()
            routed = block.dispatcher.prepare(x, *block.gate(x))
            expected = plain.execute(routed)
            limit = 0.02 * float(expected.abs().max())
            actual = block.executor.execute(routed)
            torch.testing.assert_close(actual, expected, rtol=0.02, atol=limit)


@every_kind
def test_small_batches_match_the_executor(tmp_path: Path, kind: str) -> None:
    model, _ = small_model(tmp_path, kind, torch.bfloat16)
    for block in blocks(model):
        few, norm = block.small_batch, norm_of(model, block.config.hidden_size)
        takes = block.config.plain_softmax and block.executor.name == "triton"
        assert (few is not None) == takes
        if few is None:
            continue
        for tokens in (1, 2, 7, 16, 17, 64):
            residual = torch.randn(tokens, block.config.hidden_size).bfloat16()
            block.small_batch = None
            added = block(norm, residual.clone(), None)
            assert added is not None
            expected = residual + added
            block.small_batch = few
            assert block(norm, residual, None) is None
            limit = 0.02 * float(expected.abs().max())
            torch.testing.assert_close(residual, expected, rtol=0.02, atol=limit)


@every_kind
def test_a_step_in_a_graph_is_the_step(tmp_path: Path, kind: str) -> None:
    model, _ = small_model(tmp_path, kind, torch.bfloat16)
    with torch.inference_mode():
        runner = ContiguousRunner(model, 3, 64)
        runner.step([prompt()[:21], prompt()[:1], prompt()[:18]])
        batch = runner._batch([[3], [5], [7]])
        replay, logits = captured(lambda: model.compute_logits(model(batch)))
        for tokens in ([3, 5, 7], [9, 8, 6], [100, 50, 150]):
            batch.token_ids.copy_(torch.tensor(tokens))
            expected = model.compute_logits(model(batch))
            for _ in range(3):
                logits.zero_()
                replay()
                assert torch.equal(logits, expected)
