# SPDX-License-Identifier: Apache-2.0
"""M-RoPE compared with transformers: Qwen2-VL's sections, Qwen3-VL's interleaving."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from rtp_llm import compat
from rtp_llm.testing.fused_steps import Step, configs
from rtp_llm.testing.light_transformers import light_transformers
from rtp_llm.testing.operator_checks import kernel_runs

with light_transformers():
    from transformers.models.qwen2_vl import modeling_qwen2_vl
    from transformers.models.qwen3_vl import modeling_qwen3_vl

HEADS, KV_HEADS, SIZE, BASE = 4, 2, 128, 1_000_000.0
QWEN2 = (modeling_qwen2_vl, modeling_qwen2_vl.Qwen2VLRotaryEmbedding, [16, 24, 24], False)
QWEN3 = (modeling_qwen3_vl, modeling_qwen3_vl.Qwen3VLTextRotaryEmbedding, [24, 20, 20], True)


def image_positions() -> Tensor:
    """[T, 3]: text, an image of 5 x 7 patches in two frames, text again; as the models count."""
    before = torch.arange(6)[:, None].expand(6, 3)
    grid = torch.cartesian_prod(torch.arange(2), torch.arange(5), torch.arange(7)) + 6
    after = torch.arange(4)[:, None].expand(4, 3) + int(grid.max()) + 1
    return torch.cat([before, grid, after])


def rotated(model: Any, embedding: Any, sections: list[int], heads: Tensor, ids: Tensor) -> Tensor:
    """Heads [T, H, D] as transformers rotates them."""
    parameters = {"rope_type": "default", "rope_theta": BASE, "mrope_section": sections}
    config = SimpleNamespace(
        head_dim=SIZE, max_position_embeddings=4096, rope_parameters=parameters
    )
    cos, sin = embedding(config)(heads, ids.T[:, None])
    both: tuple[Tensor, Tensor] = model.apply_rotary_pos_emb(
        heads.transpose(0, 1)[None], heads.transpose(0, 1)[None], cos, sin
    )
    return both[0][0].transpose(0, 1)


@pytest.mark.parametrize(("model", "embedding", "sections", "interleaved"), [QWEN2, QWEN3])
def test_different_axes_turn_as_in_transformers(
    model: Any, embedding: Any, sections: list[int], interleaved: bool
) -> None:
    torch.manual_seed(0)
    names = ("mrope_dim1", "mrope_dim2", "mrope_dim3")
    rope = compat.RopeSettings(
        compat.RopeStyle.Mrope,
        SIZE,
        base=BASE,
        index_factor=3,
        mrope_interleaved=interleaved,
        **dict(zip(names, sections, strict=True)),
    )
    step = Step.random(configs(rope, (HEADS, KV_HEADS, SIZE)), 1, torch.float32)
    ids = image_positions()
    tokens = len(ids)
    qkv = step.qkv(tokens)
    operator = compat.FusedRopeKVCachePrefillOpQOut(step.config)
    inputs = step.prefill([tokens], [0], combo_position_ids=ids.int().flatten())
    with kernel_runs("rotate_and_store"):
        q = operator.forward(qkv, step.cache, operator.prepare(inputs))
    before = qkv.view(tokens, -1, SIZE)
    expected = rotated(model, embedding, sections, before[:, : HEADS + KV_HEADS], ids)
    torch.testing.assert_close(q, expected[:, :HEADS], rtol=1e-5, atol=1e-5)
    k, v = step.stored(0, tokens)
    torch.testing.assert_close(k, expected[:, HEADS:], rtol=1e-5, atol=1e-5)
    assert torch.equal(v, before[:, HEADS + KV_HEADS :])
