# SPDX-License-Identifier: Apache-2.0
"""A small decoder with fused linear layers gives the logits of plain ones, in graphs too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.device import resolve_device
from rtp_llm.layers.linear.fused import FusedLinear
from rtp_llm.models.causal_lm import CausalLM
from rtp_llm.testing.gpu import captured
from rtp_llm.testing.models.contiguous_runner import ContiguousRunner
from rtp_llm.testing.models.open_model import open_model
from rtp_llm.testing.models.transformers_models import random_prompt, save_model
from rtp_llm.testing.operator_checks import DEVICE, kernel_runs

LAYERS = 2
TOLERANCE = 6e-2  # of the largest logit

pytestmark = pytest.mark.skipif(
    not ops.has_kernel("fused_linear_rows", DEVICE), reason="this device fuses nothing"
)
# With 112 columns the last product of a layer is not fused: what it adds is pending.
every_width = pytest.mark.parametrize("width", [128, 112])


def fused_layers(model: CausalLM) -> Iterator[FusedLinear]:
    return (module for module in model.modules() if isinstance(module, FusedLinear))


def small_model(folder: Path, kind: str, width: int) -> CausalLM:
    with torch.device("cpu"):
        save_model(folder, kind, num_hidden_layers=LAYERS, intermediate_size=width)
    model = open_model(folder, torch.bfloat16, device=resolve_device(DEVICE))
    taken = [layer.max_rows > 0 for layer in fused_layers(model)]
    # The head, of an odd number of rows, comes last where it has a weight of its own.
    assert taken[: 4 * LAYERS] == [True, True, True, width == 128] * LAYERS
    return model


def prompts(*lengths: int) -> list[list[int]]:
    with torch.device("cpu"):
        return [random_prompt(length) for length in lengths]


def logits_of_a_session(model: CausalLM) -> Tensor:
    """Two prompts at once, a third in chunks alongside their decodes, then all three decode."""
    first, second, third = prompts(21, 1, 18)
    steps = [[first, second, []], [[3], [5], third[:7]], [[8], [2], third[7:]], [[1], [4], [6]]]
    runner = ContiguousRunner(model, 3, 64)
    return torch.cat([torch.cat(runner.step(step)) for step in steps])


@every_width
@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
def test_logits_are_those_of_plain_layers(tmp_path: Path, kind: str, width: int) -> None:
    model = small_model(tmp_path, kind, width)
    gates = kernel_runs("norm_gated_linear", times=3 * LAYERS)  # steps of 9, 13 and 3 rows
    sums = kernel_runs("linear_add", times=(6 if width == 128 else 3) * LAYERS)
    more = any(layer.max_multiplied_rows >= 40 for layer in fused_layers(model))
    products = kernel_runs("gated_linear", times=LAYERS if more else 0)  # the step of 40 rows
    with gates, sums, products:
        actual = logits_of_a_session(model)
    for layer in fused_layers(model):
        layer.max_rows = layer.max_multiplied_rows = 0
    plain = [kernel_runs(name, times=0) for name in ("norm_gated_linear", "norm_linear")]
    with plain[0], plain[1], kernel_runs("skinny_linear", times=0):
        expected = logits_of_a_session(model)
    limit = TOLERANCE * float(expected.abs().max())
    torch.testing.assert_close(actual, expected, rtol=0, atol=limit)


@every_width
def test_a_step_in_a_graph_is_the_step(tmp_path: Path, width: int) -> None:
    model = small_model(tmp_path, "qwen3", width)
    with torch.inference_mode():
        runner = ContiguousRunner(model, 3, 64)
        runner.step(prompts(21, 1, 18))
        batch = runner._batch([[3], [5], [7]])
        replay, logits = captured(lambda: model.compute_logits(model(batch)))
        for tokens in ([3, 5, 7], [9, 8, 6], [100, 50, 150]):
            batch.token_ids.copy_(torch.tensor(tokens))
            expected = model.compute_logits(model(batch))
            for _ in range(3):
                logits.zero_()
                replay()
                assert torch.equal(logits, expected)
