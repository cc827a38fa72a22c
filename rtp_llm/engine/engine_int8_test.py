# SPDX-License-Identifier: Apache-2.0
"""int8 weights through the whole engine: the greedy tokens of the plain formulas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rtp_llm.ops.gemm.linear_reference import w8a8_int8_linear_reference
from rtp_llm.quantization.int8 import dequantize_rows, pack, quantize_rows
from rtp_llm.testing.engine.tiny_engine import Outcome, TinyEngine
from rtp_llm.testing.models.transformers_models import (
    expected_logits,
    random_prompt,
    save_model,
)

# (length, seed) of prompts for which the formula's best token is at every step more than 0.29 ahead
# of the second one: what float32 rounds differently may move an activation by one of its 254 steps,
# and which ones are moved differs between processors.
PROMPTS = {"qwen2": ((5, 546), (17, 633), (50, 746)), "qwen3": ((5, 656), (17, 467), (50, 1))}


class PlainW8A8Int8Linear(nn.Module):
    """A linear layer of transformers with the formula of w8a8_int8_linear's reference."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self._weight, self._scale = pack(*quantize_rows(linear.weight.detach()))
        self._bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        out = w8a8_int8_linear_reference(rows, self._weight, self._scale, self._bias)
        return out.view(*x.shape[:-1], -1)


def dequantized(linear: nn.Linear) -> nn.Linear:
    """Only the weight rounded; activations as they are."""
    with torch.no_grad():
        linear.weight.copy_(dequantize_rows(*quantize_rows(linear.weight.detach())))
    return linear


def with_linears(model: nn.Module, change: Any) -> nn.Module:
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear):
                setattr(parent, name, change(child))
    return model


@torch.inference_mode()
def differences(model: nn.Module, prompt: list[int], outcome: Outcome) -> tuple[Tensor, Tensor]:
    """By how much another token is likelier in ``model``, and how its log-probabilities differ.

    Step by step after the engine's own tokens.
    """
    scores = expected_logits(model, [*prompt, *outcome.tokens])[len(prompt) - 1 : -1]
    scores = scores.log_softmax(-1)
    chosen = scores.gather(1, torch.tensor(outcome.tokens)[:, None])[:, 0]
    own = torch.tensor([entry.logprob for entry in outcome.logprobs])
    return scores.amax(-1) - chosen, (chosen - own).abs()


def generate(
    folder: Path, kind: str, quantization: str, chunk: int
) -> list[tuple[list[int], Outcome]]:
    """What the engine says after each of PROMPTS, all at once."""
    engine = TinyEngine(folder, quantization=quantization, max_batch_tokens_size=chunk)
    wanted = {"max_tokens": 32, "ignore_eos": True, "logprobs": 0}
    prompts = [random_prompt(length, seed) for length, seed in PROMPTS[kind]]
    outcomes = [engine.outcomes[engine.add(prompt, **wanted), 0] for prompt in prompts]
    engine.run()
    return list(zip(prompts, outcomes, strict=True))


every_chunk = pytest.mark.parametrize("chunk", [16, 256])
every_kind = pytest.mark.parametrize("kind", ["qwen2", "qwen3"], ids=["biases", "no biases"])


@every_chunk
@every_kind
def test_weight_only_tokens_are_those_of_rounded_weights(
    kind: str, chunk: int, tmp_path: Path
) -> None:
    rounded = with_linears(save_model(tmp_path, kind, seed=5), dequantized)
    for prompt, outcome in generate(tmp_path, kind, "int8", chunk):
        gap, error = differences(rounded, prompt, outcome)
        # Logits have a standard deviation of 4; quantised activations were off by up to 1.0.
        assert gap.max() < 1e-3
        assert error.max() < 1e-3


@every_chunk
@every_kind
def test_greedy_tokens_are_those_of_the_formula(kind: str, chunk: int, tmp_path: Path) -> None:
    formula = with_linears(save_model(tmp_path, kind, seed=5), PlainW8A8Int8Linear)
    rounded = with_linears(save_model(tmp_path, kind, seed=5), dequantized)
    for prompt, outcome in generate(tmp_path, kind, "w8a8_int8", chunk):
        gap, error = differences(formula, prompt, outcome)
        # Logits have a standard deviation of 4.
        assert gap.max() == 0
        assert error.max() < 0.3
        gap, error = differences(rounded, prompt, outcome)
        assert gap.max() < 1.0
        assert error.mean() < 0.2
