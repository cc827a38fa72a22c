# SPDX-License-Identifier: Apache-2.0
"""Specs of layers, the groups that they form, and the memory that they describe."""

from __future__ import annotations

import math

import pytest
import torch

from rtp_llm.attention.cache_spec import (
    CacheGroups,
    CacheSpec,
    FullAttentionSpec,
    MlaSpec,
    RecurrentSpec,
    SlidingWindowSpec,
)

FULL = FullAttentionSpec(2, 64, torch.bfloat16)
NARROW = SlidingWindowSpec(2, 64, torch.bfloat16, window=16)
WIDE = SlidingWindowSpec(2, 64, torch.bfloat16, window=512)
MLA = MlaSpec(512, 64, torch.bfloat16)
STATE = RecurrentSpec(((4, 8, 8), (3, 5)), (torch.float32, torch.bfloat16))


def test_equal_specs_share_a_group_full_attention_first_and_states_last() -> None:
    groups = CacheGroups.of([STATE, WIDE, NARROW, None, FULL, WIDE, STATE])
    assert [group.spec for group in groups.groups] == [FULL, NARROW, WIDE, STATE]
    assert [group.layers for group in groups.groups] == [(4,), (2,), (1, 5), (0, 6)]
    assert groups.layer_group == (3, 2, 1, -1, 0, 2, 3)


def test_heads_types_and_kinds_make_groups_of_their_own() -> None:
    others = [
        FullAttentionSpec(4, 64, torch.bfloat16),
        FullAttentionSpec(2, 128, torch.bfloat16),
        FullAttentionSpec(2, 64, torch.float8_e4m3fn),
        MLA,
    ]
    assert len(CacheGroups.of([FULL, *others]).groups) == 5


@pytest.mark.parametrize(
    ("spec", "shape", "size"),
    [
        (FULL, (2, 9, 16, 2, 64), 2 * 16 * 2 * 64 * 2),
        (NARROW, (2, 9, 16, 2, 64), 2 * 16 * 2 * 64 * 2),
        (MLA, (1, 9, 16, 1, 576), 16 * 576 * 2),
        (STATE, (1, 9, 1024 + 256), 1024 + 256),
    ],
)
def test_memory_of_a_layer(spec: CacheSpec, shape: tuple[int, ...], size: int) -> None:
    assert spec.layer_shape(9, 16) == shape
    assert spec.block_bytes(16) == size
    assert math.prod(shape) * spec.memory_dtype.itemsize == 9 * size
    (group,) = CacheGroups.of([spec] * 3).groups
    assert group.block_bytes(16) == 3 * size


def test_states_are_parts_of_their_blocks() -> None:
    memory = torch.zeros(STATE.layer_shape(9, 16), dtype=torch.uint8)
    first, second = STATE.states(memory)
    assert (first.shape, first.dtype) == ((9, 4, 8, 8), torch.float32)
    assert (second.shape, second.dtype) == ((9, 3, 5), torch.bfloat16)
    first[3], second[5] = 1.0, 1.0
    written = memory[0].any(dim=1).nonzero().flatten().tolist()
    assert written == [3, 5]
    assert not memory[0, 5, :1024].any() and not memory[0, 3, 1024:].any()


def test_bytes_of_a_token_are_those_of_attention() -> None:
    assert CacheGroups.of([FULL, STATE, NARROW, None]).token_bytes == 2 * 2 * 2 * 64 * 2


def test_a_group_says_what_it_is() -> None:
    groups = CacheGroups.of([FULL, NARROW, MLA, STATE, STATE]).groups
    assert list(map(str, groups)) == [
        "1 layer of full attention, 2 KV heads of 64 in bfloat16",
        "1 layer of MLA, latents of 512 and keys of 64 in bfloat16",
        "1 layer of sliding window of 16, 2 KV heads of 64 in bfloat16",
        "2 layers of recurrent states of 4x8x8 in float32 and 3x5 in bfloat16; 2.5 KiB a state",
    ]
