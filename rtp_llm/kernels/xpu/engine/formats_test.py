# SPDX-License-Identifier: Apache-2.0
"""Engines over SYCL kernels, with weights in a few bits: the tokens are those of the floats."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rtp_llm import ops
from rtp_llm.ops.gemm.wna16_reference import rounded_parts
from rtp_llm.quantization import int4
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.gguf.models import save_gguf
from rtp_llm.testing.models.fp8_checkpoints import BLOCKS, TENSORS, Style, store_as_fp8
from rtp_llm.testing.models.transformers_models import clear_prompt, save_model

STEPS = 10


def store_as_gguf(folder: Path) -> tuple[Path, Any]:
    model = save_model(folder, "qwen3", seed=7, hidden_size=256, intermediate_size=128)
    return save_gguf(folder / "tiny.gguf", model, "qwen3", {"": "Q8_0", **_BLOCKS})[0], model


# Blocks of 256 columns, for matrices with as many.
_BLOCKS = {"blk.0.attn_q.weight": "Q4_K", "blk.1.attn_v.weight": "IQ4_XS"}


def _round(_module: torch.nn.Module, given: tuple[torch.Tensor]) -> torch.Tensor:
    """Activations in 8 bits, as integers in groups meet them."""
    (x,) = given
    rounded = rounded_parts(x.flatten(0, -2), int4.GROUP_SIZE).float()
    return rounded[:, : x.shape[-1]].view(x.shape)


@torch.no_grad()
def round_to_int4(folder: Path) -> tuple[Path, Any]:
    model = save_model(folder, "qwen3", seed=7)
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight.copy_(int4.dequantize_rows(*int4.quantize_rows(module.weight)))
            module.register_forward_pre_hook(_round)
    return folder, model


def store_in_fp8(style: Style, folder: Path) -> tuple[Path, Any]:
    """Of sizes that are no whole blocks, so that there are rows of zeros between parts."""
    saved = folder / "fp8"
    saved.mkdir()
    model = save_model(saved, "qwen2", seed=7, hidden_size=160, intermediate_size=144)
    model.load_state_dict(load_file(store_as_fp8(saved, style=style) / "model.safetensors"))
    return saved, model


FAMILIES: dict[str, tuple[Callable[[Path], tuple[Path, Any]], str, dict[str, Any]]] = {
    "int4": (round_to_int4, "wna16_linear", {"quantization": "int4"}),
    "fp8_blocks": (partial(store_in_fp8, BLOCKS), "fp8_weight_linear", {}),
    "fp8_tensors": (partial(store_in_fp8, TENSORS), "fp8_weight_linear", {}),
    "gguf": (store_as_gguf, "gguf_linear", {"gguf_activations": "float"}),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_give_the_tokens_of_their_floats(family: str, tmp_path: Path) -> None:
    save, operator, settings = FAMILIES[family]
    model, reference = save(tmp_path)
    inputs = [clear_prompt(reference, length, STEPS) for length in (5, 70)]
    calls = ops.kernel_calls(operator)
    engine = TinyEngine(model, max_batch_tokens_size=64, **settings)
    ids = [engine.add(prompt, max_tokens=STEPS, ignore_eos=True) for prompt, _ in inputs]
    engine.run()
    assert [engine.outcomes[each, 0].tokens for each in ids] == [tokens for _, tokens in inputs]
    assert ops.kernel_calls(operator) > calls
