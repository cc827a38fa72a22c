# SPDX-License-Identifier: Apache-2.0
"""Attention with an output gate, norms of 1 + w and partial rotation: Qwen3-Next's, from parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rtp_llm.attention import BackendOptions, ForwardBatch
from rtp_llm.attention.factory import make_backend
from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.device.capabilities import HOST
from rtp_llm.layers import (
    AttentionLayer,
    AttentionShape,
    LayerOptions,
    RMSNorm,
    Rotary,
    finish_loading,
    weight_targets,
)
from rtp_llm.ops.rope.rotary_table import RopeConfig
from rtp_llm.testing.light_transformers import light_transformers

with light_transformers():
    from transformers import Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import (
        Qwen3NextAttention,
        Qwen3NextRMSNorm,
        Qwen3NextRotaryEmbedding,
    )

CPU = torch.device("cpu")
HIDDEN, EPS, BLOCK, TOKENS = 64, 1e-5, 16, 40
# Query heads, KV heads, head size, channels that turn.
SIZES = [(4, 2, 16, 4), (3, 1, 24, 6), (16, 2, 256, 64)]


def random_weights(module: torch.nn.Module) -> None:
    for name, parameter in module.named_parameters():
        if "norm" in name or parameter.dim() == 1:
            parameter.data.normal_(std=0.5)
        else:
            parameter.data.normal_(std=1.5 * parameter.shape[1] ** -0.5)


class Pair:
    """transformers' layer with the norm before it, and ours of the same weights."""

    def __init__(self, sizes: tuple[int, ...], dtype: torch.dtype, quantization: str) -> None:
        heads, kv_heads, head_dim, rotary_dim = sizes
        torch.manual_seed(5)
        config = Qwen3NextConfig(
            hidden_size=HIDDEN,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            attention_bias=True,
            rms_norm_eps=EPS,
            partial_rotary_factor=rotary_dim / head_dim,
            rope_theta=1000.0,
            attn_implementation="eager",
        )
        self.theirs, self.their_norm = Qwen3NextAttention(config, 0), Qwen3NextRMSNorm(HIDDEN, EPS)
        self.their_rotary = Qwen3NextRotaryEmbedding(config)
        for module in (self.theirs, self.their_norm):
            random_weights(module)
            module.to(dtype)
        settings = ModelSettings(dtype=str(dtype).removeprefix("torch."), quantization=quantization)
        options = LayerOptions(settings, CPU)
        shape = AttentionShape(
            HIDDEN, heads, kv_heads, head_dim, True, True, EPS, norm_offset=1.0, output_gate=True
        )
        requested = BackendOptions(HOST, dtype, dtype, BLOCK, settings=settings)
        backend: Any = make_backend(shape.backend_config(requested))
        self.ours = shape.make(0, backend, options)
        self.norm = RMSNorm(HIDDEN, EPS, options, offset=1.0)
        load(self.ours, self.theirs.state_dict())
        load(self.norm, self.their_norm.state_dict())
        self.rotary = Rotary(RopeConfig("default", rotary_dim, 1000.0), TOKENS, CPU)
        self.cache = torch.full((2, 5, BLOCK, kv_heads, head_dim), torch.nan, dtype=dtype)

    def expected(self, x: Tensor) -> Tensor:
        """Of the whole sequence, in one step."""
        places = torch.arange(len(x))
        mask = torch.full((len(x), len(x)), -torch.inf, dtype=x.dtype).triu(1)[None, None]
        angles = self.their_rotary(x, places[None])
        with torch.inference_mode():
            hidden, _ = self.theirs(self.their_norm(x)[None], angles, mask)
        return hidden[0]  # type: ignore[no-any-return]

    def step(self, x: Tensor, start: int) -> Tensor:
        places = torch.arange(start, start + len(x), dtype=torch.int32)
        blocks = torch.tensor([[4, 1, 3]], dtype=torch.int32)
        slots = blocks[0, places.long() // BLOCK] * BLOCK + places % BLOCK
        batch = ForwardBatch(
            token_ids=places,
            positions=places,
            cu_seqlens_q=torch.tensor([0, len(x)], dtype=torch.int32),
            seq_lens=torch.tensor([start + len(x)], dtype=torch.int32),
            max_seqlen_q=len(x),
            max_seqlen_k=start + len(x),
            slot_mapping=(slots,),
            block_table=(blocks,),
            kv_cache=(self.cache,),
            layer_group=(0,),
        )
        residual = x.clone()
        with torch.inference_mode():
            added = self.ours(self.norm, residual, None, self.rotary.cos_sin, batch)
        return residual - x if added is None else added


def load(layer: AttentionLayer | RMSNorm, weights: dict[str, Tensor]) -> None:
    names = []
    for name, target in weight_targets(layer):
        assert target.shape == weights[name].shape
        for start in range(0, len(weights[name]), 7):
            target.write(start, weights[name][start : start + 7])
        names.append(name)
    assert sorted(names) == sorted(weights)
    finish_loading(layer)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(
    ("dtype", "quantization", "limit"),
    [
        (torch.float32, "none", 1e-5),
        (torch.bfloat16, "none", 4e-2),
        (torch.float16, "none", 5e-3),
        (torch.float32, "int8", 4e-2),
    ],
    ids=str,
)
def test_prompts_chunks_and_decodes_are_those_of_transformers(
    sizes: tuple[int, ...], dtype: torch.dtype, quantization: str, limit: float
) -> None:
    pair = Pair(sizes, dtype, quantization)
    x = torch.randn(TOKENS, HIDDEN).to(dtype)
    expected = pair.expected(x)
    done, parts = 0, []
    for count in (17, 20, 1, 1, 1):
        parts.append(pair.step(x[done : done + count], done))
        done += count
    error = (torch.cat(parts).double() - expected.double()).norm() / expected.double().norm()
    assert error < limit
