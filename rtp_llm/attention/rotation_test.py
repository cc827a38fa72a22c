# SPDX-License-Identifier: Apache-2.0
"""Tests of the ways to norm, rotate and store: they agree, and each device gets its own."""

from __future__ import annotations

import pytest
import torch

from rtp_llm.attention import rotation as ways
from rtp_llm.attention.rotation import Rotation
from rtp_llm.device.capabilities import HOST
from rtp_llm.testing.capabilities import HOPPER, ROCM, XPU
from rtp_llm.testing.operator_checks import assert_near

HEADS, KV_HEADS, HEAD_DIM, TOKENS = 4, 2, 32, 5


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def rotations():
    table = torch.randn(50, 24)
    weights = torch.rand(2, HEAD_DIM)
    return {
        "norms": Rotation(table, *weights),
        "norms with an offset": Rotation(table, *weights, norm_offset=1.0),
        "plain": Rotation(table),
        "neighbours": Rotation(table, is_neox=False, rotary_offset=8),
        "none": Rotation(),
    }


@pytest.mark.parametrize("name", rotations())
def test_one_pass_does_what_two_do(name):
    qkv = torch.randn(TOKENS, (HEADS + 2 * KV_HEADS) * HEAD_DIM)
    positions = torch.randint(50, (TOKENS,), dtype=torch.int32)
    slots = torch.tensor([17, -1, 3, 0, 31], dtype=torch.int32)
    done = []
    for way in (ways.rotate_in_one_pass, ways.rotate_in_two_passes):
        changed, cache = qkv.clone(), torch.full((2, 2, 16, KV_HEADS, HEAD_DIM), 7.0)
        way(changed, positions, slots, cache, rotations_of(name), HEADS, KV_HEADS, HEAD_DIM)
        done.append((changed[:, : HEADS * HEAD_DIM], cache))
    assert_near(done[0][0], done[1][0])
    assert_near(done[0][1], done[1][1])
    assert (done[0][1] == 7.0).any(), "the cache was written where no token goes"
    assert not torch.equal(done[0][0], qkv[:, : HEADS * HEAD_DIM]) or name == "none"


def rotations_of(name):
    torch.manual_seed(1)
    return rotations()[name]


@pytest.mark.parametrize(
    ("device", "way"),
    [
        (HOST, ways.rotate_in_two_passes),
        (HOPPER, ways.rotate_in_one_pass),
        (ROCM, ways.rotate_in_one_pass),
        (XPU, ways.rotate_in_two_passes),
    ],
)
def test_each_device_has_a_way_whose_operators_it_has(device, way):
    assert ways.rotation_for(device) is way
