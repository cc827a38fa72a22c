# SPDX-License-Identifier: Apache-2.0
"""The decode backend of an NVIDIA GPU compared with the backend that it takes steps from."""

from __future__ import annotations

import pytest
import torch

from rtp_llm import ops
from rtp_llm.attention import AttentionConfig, ForwardBatch, Rotation, make_backend
from rtp_llm.attention.paged import PagedAttentionBackend
from rtp_llm.testing.capabilities import HOPPER
from rtp_llm.testing.decode_steps import DecodeStep, norms_and_rotation
from rtp_llm.testing.operator_checks import assert_near, kernel_runs
from rtp_llm.testing.paged_batches import Shape

pytestmark = pytest.mark.skipif(
    not ops.has_kernel("decode_attention", "cuda"), reason="this build has no such kernel"
)
# The last one is Qwen3-Next's, whose rows end with a gate.
SHAPES = [(Shape(16, 8, 128), 128, 0.0), (Shape(16, 2, 256), 64, 1.0)]


@pytest.mark.parametrize("window", [0, 300])
@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize(("shape", "rotary_dim", "offset"), SHAPES, ids=str)
def test_a_step_is_what_separate_kernels_do(
    shape: Shape, rotary_dim: int, offset: float, window: int, norm: bool
) -> None:
    torch.manual_seed(0)
    half, sizes = torch.bfloat16, (shape.heads, shape.kv_heads, shape.head_dim, shape.block_size)
    config = AttentionConfig(HOPPER, half, half, *sizes, (0, 300))
    options = norms_and_rotation(shape.head_dim, half, rotary_dim)
    rotation = Rotation(**options, norm_offset=offset) if norm else Rotation(options["cos_sin"])
    step = DecodeStep.random([1, 40, 2000, 16, 700, 0], shape, half)
    other = step.copy()
    backend = make_backend(config)
    assert backend.name == "decode"
    wide = torch.cat([step.arguments["qkv"]] * 2, dim=1)
    width = wide.shape[1] // 2
    with kernel_runs("decode_attention"):
        qkv = wide.clone()[:, :width]
        actual = backend.attend(qkv, 0, window, batch_of(step), rotation)
    plain = PagedAttentionBackend(config)
    expected = plain.attend(wide.clone()[:, :width], 0, window, batch_of(other), rotation)
    assert_near(actual, expected)
    keys = (cache.nan_to_num() for cache in (step.cache, other.cache))
    assert_near(*keys, tolerance=8e-3)


def batch_of(step: DecodeStep) -> ForwardBatch:
    given = step.arguments
    lens = given["seq_lens"]
    return ForwardBatch(
        token_ids=given["positions"],
        positions=given["positions"],
        cu_seqlens_q=torch.cat([lens.new_zeros(1), (lens > 0).int().cumsum(0).int()]),
        seq_lens=lens,
        max_seqlen_q=1,
        max_seqlen_k=int(lens.max()),
        slot_mapping=(given["slot_mapping"],),
        block_table=(given["block_table"],),
        kv_cache=(step.cache,),
        layer_group=(0,),
    )
