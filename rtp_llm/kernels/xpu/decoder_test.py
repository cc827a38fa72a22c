# SPDX-License-Identifier: Apache-2.0
"""A whole small decoder made of the kernels, against the same decoder made of the references.

Matrix products are torch's own on both sides: the XPU library has none, and leaves them to torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rtp_llm.ops.fallback import lazy
from rtp_llm.ops.registry import operator
from rtp_llm.ops.schema import OPERATORS
from rtp_llm.testing import xpu_bridge  # noqa: F401 (loads the bridge)
from rtp_llm.testing.models.contiguous_runner import ContiguousRunner
from rtp_llm.testing.models.open_model import open_model
from rtp_llm.testing.models.transformers_models import random_prompt, save_model
from rtp_llm.testing.operator_checks import kernel_runs

LAYERS = 2
TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 6e-2}


@contextlib.contextmanager
def references() -> Iterator[None]:
    """Every operator is its plain PyTorch reference inside."""
    native = {name: operator(name).call for name in OPERATORS}
    try:
        for name, entry in OPERATORS.items():
            operator(name).call = lazy(entry.reference)
        yield
    finally:
        for name, call in native.items():
            operator(name).call = call


def logits_of_a_session(runner: ContiguousRunner, prompts: list[list[int]]) -> Tensor:
    """Two prompts at once, a third in chunks alongside their decodes, then all three decode."""
    first, second, third = prompts
    steps = [[first, second, []], [[3], [5], third[:7]], [[8], [2], third[7:]], [[1], [4], [6]]]
    return torch.cat([torch.cat(runner.step(step)) for step in steps])


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
def test_decoder_equals_its_reference(tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
    save_model(tmp_path, kind, num_hidden_layers=LAYERS)
    model = open_model(tmp_path, dtype)
    prompts = [random_prompt(length) for length in (21, 1, 18)]
    with kernel_runs("paged_attention", times=4 * LAYERS), kernel_runs("rope_kv_write", 4 * LAYERS):
        actual = logits_of_a_session(ContiguousRunner(model, 3, 64), prompts)
    with references():
        expected = logits_of_a_session(ContiguousRunner(model, 3, 64), prompts)
    limit = TOLERANCES[dtype] * float(expected.abs().max())
    torch.testing.assert_close(actual, expected, rtol=0, atol=limit)


def test_greedy_tokens_are_those_of_the_reference(tmp_path: Path) -> None:
    save_model(tmp_path, "qwen3", num_hidden_layers=LAYERS)
    model = open_model(tmp_path)
    prompt = random_prompt(12)
    actual = ContiguousRunner(model, 1, 64).greedy(prompt, 20)
    with references():
        assert actual == ContiguousRunner(model, 1, 64).greedy(prompt, 20)
