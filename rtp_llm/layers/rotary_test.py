# SPDX-License-Identifier: Apache-2.0
"""The table of a step with positions on three axes is transformers' (Qwen2-VL, Qwen3-VL)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from rtp_llm.layers.rotary import Mrope, MropeConfig
from rtp_llm.ops.rope.rotary_table import RopeConfig, rope_table
from rtp_llm.testing.light_transformers import light_transformers

CPU = torch.device("cpu")
SECTIONS = (12, 10, 10)


def rotary_of_transformers(interleaved: bool) -> Any:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": list(SECTIONS)}
    sizes = {"hidden_size": 128, "num_attention_heads": 2, "head_dim": 64}
    with light_transformers():
        if interleaved:
            from transformers.models.qwen3_vl import modeling_qwen3_vl as qwen3
            from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig

            return qwen3.Qwen3VLTextRotaryEmbedding(
                Qwen3VLTextConfig(**sizes, rope_parameters=rope)
            )
        from transformers.models.qwen2_vl import modeling_qwen2_vl as qwen2
        from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLTextConfig

        return qwen2.Qwen2VLRotaryEmbedding(Qwen2VLTextConfig(**sizes, rope_parameters=rope))


@dataclass(frozen=True)
class Batch:
    positions: Tensor
    mrope_offsets: Tensor


@pytest.mark.parametrize("interleaved", [False, True], ids=["sections", "interleaved"])
def test_rows_are_those_of_transformers(interleaved: bool) -> None:
    index = torch.arange(7, dtype=torch.int32) + 5
    offsets = torch.randint(-5, 20, (7, 3), dtype=torch.int32, generator=torch.manual_seed(0))
    table = rope_table(RopeConfig("default", 64), 40, CPU)
    batch: Any = Batch(index, offsets)
    cos_sin, moved = Mrope(MropeConfig(SECTIONS, interleaved), CPU)(table, batch)
    assert moved.positions.tolist() == list(range(7))
    positions = (index[:, None] + offsets).long().T[:, None]  # [3, 1, T]
    cos, sin = rotary_of_transformers(interleaved)(torch.zeros(1, 7, 1), positions)
    expected = torch.cat([cos[0, :, :32], sin[0, :, :32]], dim=1)
    torch.testing.assert_close(cos_sin, expected, rtol=1e-6, atol=1e-6)
