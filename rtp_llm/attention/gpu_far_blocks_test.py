# SPDX-License-Identifier: Apache-2.0
"""Blocks of a cache that 32 bits do not reach: a GPU's whole memory is one pool of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.attention import AttentionConfig, ForwardBatch, Rotation, make_backend
from rtp_llm.device import Device
from rtp_llm.testing.usable_gpu import usable_gpu

BLOCK, KV_HEADS, HEADS, HEAD = 16, 8, 16, 128
BLOCKS = 2**31 // (BLOCK * KV_HEADS * HEAD) + 40  # of each plane
NEEDED = 2 * BLOCKS * BLOCK * KV_HEADS * HEAD * 2


GPU = usable_gpu()
pytestmark = pytest.mark.skipif(GPU is None, reason="no GPU, or not built for the one there is")


@pytest.fixture(scope="module", autouse=True)
def device() -> Iterator[Device]:
    assert GPU is not None
    with GPU.torch_device:
        yield GPU
    GPU.empty_cache()


@pytest.fixture(scope="module")
def far(device: Device) -> Tensor:
    """[2, N, S, Hk, D] in bfloat16, not initialised."""
    if device.memory_info().free < 1.2 * NEEDED:
        pytest.skip(f"a cache of {NEEDED >> 30} GiB is needed")
    return torch.empty(2, BLOCKS, BLOCK, KV_HEADS, HEAD, dtype=torch.bfloat16)


def attend(cache: Tensor, blocks: list[list[int]], length: int, new: int) -> Tensor:
    """Attention of the last `new` of `length` tokens; sequence i lies in blocks[i]."""
    torch.manual_seed(1)
    assert GPU is not None
    backend = make_backend(
        AttentionConfig(
            GPU.capabilities(),
            cache.dtype,
            cache.dtype,
            HEADS,
            KV_HEADS,
            HEAD,
            BLOCK,
        )
    )
    table = torch.tensor(blocks, dtype=torch.int32)
    rotation = Rotation(torch.randn(length, HEAD))

    def step(first: int, count: int) -> Tensor:
        positions = torch.arange(first, first + count, dtype=torch.int32)
        slots = table[:, positions.long() // BLOCK] * BLOCK + positions % BLOCK
        tokens = positions.repeat(len(blocks))
        batch = ForwardBatch(
            token_ids=tokens,
            positions=tokens,
            cu_seqlens_q=count * torch.arange(len(blocks) + 1, dtype=torch.int32),
            seq_lens=torch.full((len(blocks),), first + count, dtype=torch.int32),
            max_seqlen_q=count,
            max_seqlen_k=first + count,
            slot_mapping=(slots.flatten(),),
            block_table=(table,),
            kv_cache=(cache,),
            layer_group=(0,),
        )
        qkv = torch.randn(len(tokens), (HEADS + 2 * KV_HEADS) * HEAD).bfloat16()
        return backend.attend(qkv, 0, 0, batch, rotation)

    step(0, length - new)
    return step(length - new, new)


@pytest.mark.parametrize("new", [1, 5, 40], ids=["decode", "few tokens", "chunk"])
def test_attention_reaches_the_last_block(far: Tensor, new: int) -> None:
    near = torch.empty(2, 16, BLOCK, KV_HEADS, HEAD, dtype=torch.bfloat16)
    expected = attend(near, [[1, 2, 3, 4], [5, 6, 7, 8]], 60, new)
    last = BLOCKS - 1
    actual = attend(far, [[last, 0, last - 2, 2], [last - 4, last - 3, 7, last - 1]], 60, new)
    # Keys that lie elsewhere would change everything.
    torch.testing.assert_close(actual, expected, rtol=0.02, atol=0.02)


def test_blocks_are_copied_over_the_whole_pool(far: Tensor) -> None:
    far[:, BLOCKS - 1] = torch.randn(2, BLOCK, KV_HEADS, HEAD).bfloat16()
    far[:, 3] = 0
    pairs = torch.tensor([[BLOCKS - 1, 3], [BLOCKS - 1, BLOCKS - 7]], dtype=torch.int32)
    ops.copy_blocks(far.unsqueeze(0), pairs)
    for target in (3, BLOCKS - 7):
        assert torch.equal(far[:, target], far[:, BLOCKS - 1])
