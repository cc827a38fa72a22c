# SPDX-License-Identifier: Apache-2.0
"""Tests of the ways to norm, rotate and store: they agree, and each device gets its own."""

from __future__ import annotations

import pytest
import torch

from rtp_llm.attention import rotation as ways
from rtp_llm.attention.rotation import Rotation
from rtp_llm.device.capabilities import HOST
from rtp_llm.ops.norm.norm_reference import rms_norm_reference
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


@pytest.mark.parametrize("rotates", [False, True])
@pytest.mark.parametrize(("tokens", "heads"), [(1, 1), (TOKENS, HEADS), (0, HEADS)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_heads_alone_are_normalised_and_rotated(rotates, tokens, heads, dtype):
    """In place and from other heads of a row, whose neighbours stay as they are."""
    rows = torch.randn(tokens, 3 * heads, HEAD_DIM).to(dtype)
    weight, table = torch.rand(HEAD_DIM).to(dtype), torch.randn(50, HEAD_DIM) if rotates else None
    positions = torch.randint(50, (tokens,), dtype=torch.int32)
    x = rows[:, heads : 2 * heads]
    expected = rms_norm_reference(x, weight, 1e-5)
    if table is not None:
        cos, sin = table[positions.long()].chunk(2, -1)
        wide = expected.float()
        first, second = wide.chunk(2, -1)
        turned = torch.cat([-second, first], -1) * sin.repeat(1, 2)[:, None]
        expected = (wide * cos.repeat(1, 2)[:, None] + turned).to(dtype)
    before = rows.clone()
    ways.normalize_heads(x, rows[:, 2 * heads :], weight, 1e-5, table, positions)
    assert_near(rows[:, 2 * heads :], expected)
    assert torch.equal(rows[:, : 2 * heads], before[:, : 2 * heads])
    ways.normalize_heads(x, x, weight, 1e-5, table, positions)
    assert torch.equal(x, rows[:, 2 * heads :])


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
