# SPDX-License-Identifier: Apache-2.0
"""An attention layer like Qwen3-Next's on a GPU, compared with the same in float32 on the CPU."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.attention import BackendOptions, ForwardBatch, make_backend
from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.device import resolve_device
from rtp_llm.layers import AttentionLayer, AttentionShape, LayerOptions, RMSNorm, Rotary
from rtp_llm.ops.rope.rotary_table import RopeConfig
from rtp_llm.testing.operator_checks import DEVICE, kernel_runs

CPU = torch.device("cpu")
HIDDEN, EPS, BLOCK = 256, 1e-6, 16
SHAPE = AttentionShape(HIDDEN, 16, 2, 256, norm_eps=EPS, norm_offset=1.0, output_gate=True)
ROPE = RopeConfig("default", 64, 10000.0)
# A prompt that the one-pass rotation takes in bulk, a chunk, few rows, single tokens.
STEPS = (500, 30, 5, 1, 1, 1)


class Side:
    """The layer with the norm before it on one device, and its cache."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device = device
        with device:
            settings = ModelSettings(dtype=str(dtype).removeprefix("torch."))
            options = LayerOptions(settings, device)
            capabilities = resolve_device(device.type).capabilities()
            asked = BackendOptions(capabilities, dtype, dtype, BLOCK, settings)
            backend = make_backend(SHAPE.backend_config(asked))
            layer = SHAPE.make(0, backend, options)
            assert isinstance(layer, AttentionLayer)
            self.layer, self.norm = layer, RMSNorm(HIDDEN, EPS, options, offset=1.0)
            self.rotary = Rotary(ROPE, sum(STEPS), device)
            blocks = -(-sum(STEPS) // BLOCK)
            self.blocks = (1 + torch.arange(blocks, dtype=torch.int32)).flip(0)[None]
            self.cache = torch.full((2, blocks + 1, BLOCK, 2, 256), torch.nan, dtype=dtype)

    def run(self, x: Tensor, start: int) -> Tensor:
        """What the layer adds to rows `x` from position `start` on."""
        count = len(x)
        with self.device, torch.inference_mode():
            places = torch.arange(start, start + count, dtype=torch.int32)
            slots = self.blocks[0, places.long() // BLOCK] * BLOCK + places % BLOCK
            batch = ForwardBatch(
                token_ids=places,
                positions=places,
                cu_seqlens_q=torch.tensor([0, count], dtype=torch.int32),
                seq_lens=torch.tensor([start + count], dtype=torch.int32),
                max_seqlen_q=count,
                max_seqlen_k=start + count,
                slot_mapping=(slots,),
                block_table=(self.blocks,),
                kv_cache=(self.cache,),
                layer_group=(0,),
            )
            given = x.to(self.device, self.cache.dtype)
            residual = torch.zeros_like(given)
            residual += given
            added = self.layer(self.norm, residual, None, self.rotary.cos_sin, batch)
            return residual - given if added is None else added


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_prompts_chunks_and_decodes_are_those_of_the_cpu(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    here, reference = Side(torch.get_default_device(), dtype), Side(CPU, torch.float32)
    modules = ((here.layer, reference.layer), (here.norm, reference.norm))
    for mine, theirs in modules:
        for ours, wide in zip(mine.parameters(), theirs.parameters(), strict=True):
            std = 0.3 if wide.dim() == 1 else 1.5 * wide.shape[1] ** -0.5
            with CPU:
                ours.data.copy_(torch.randn(wide.shape) * std)
            wide.data.copy_(ours.data)
    start, limit = 0, 3e-2 if dtype is torch.bfloat16 else 6e-3
    singles = sum(count == 1 for count in STEPS)
    one_pass = contextlib.nullcontext()
    if ops.has_kernel("decode_attention", DEVICE):
        one_pass = kernel_runs("decode_attention", times=singles)
    with kernel_runs("sigmoid_gate", times=2 * len(STEPS)), one_pass:
        for count in STEPS:
            with CPU:
                x = torch.randn(count, HIDDEN).to(dtype)
            actual = here.run(x, start).double().cpu()
            expected = reference.run(x, start).double()
            error = (actual - expected).norm() / expected.norm()
            assert error < limit, f"{count} tokens from {start}: relative error {error}"
            start += count
