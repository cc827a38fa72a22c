# SPDX-License-Identifier: Apache-2.0
"""Tests of the decode backend's part on the host, with the reference in place of the kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rtp_llm import ops
from rtp_llm.attention import AttentionConfig, ForwardBatch, Rotation
from rtp_llm.attention.decode import DecodeBackend
from rtp_llm.attention.paged import PagedAttentionBackend
from rtp_llm.device.capabilities import HOST
from rtp_llm.ops.attention.decode_attention_reference import (
    decode_attention_reference,
)
from rtp_llm.testing.decode_steps import DecodeStep, norms_and_rotation
from rtp_llm.testing.operator_checks import assert_near
from rtp_llm.testing.paged_batches import Shape

SHAPE = Shape(4, 2, 64)
CONFIG = AttentionConfig(HOST, torch.float32, torch.float32, 4, 2, 64, 16, (0, 24), soft_cap=5.0)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture
def calls(monkeypatch):
    """What the kernel is called with; the reference answers."""
    seen = []

    def attend(*arguments, **options):
        seen.append(options)
        return decode_attention_reference(*arguments, **options)

    monkeypatch.setattr(ops, "decode_attention", attend)
    return seen


def backends():
    others = PagedAttentionBackend(CONFIG)
    return DecodeBackend(CONFIG, others), others


def batch_of(step):
    """Two layers in two cache groups, whose tables differ."""
    given, nothing = step.arguments, torch.full_like(step.arguments["slot_mapping"], -1)
    lens = given["seq_lens"]
    return ForwardBatch(
        token_ids=given["positions"],
        positions=given["positions"],
        cu_seqlens_q=torch.cat([lens.new_zeros(1), (lens > 0).int().cumsum(0).int()]),
        seq_lens=lens,
        max_seqlen_q=1,
        max_seqlen_k=int(lens.max()),
        slot_mapping=(nothing, given["slot_mapping"]),
        block_table=(torch.full_like(given["block_table"], -1), given["block_table"]),
        kv_cache=(torch.zeros(0), step.cache),
        layer_group=(0, 1),
    )


@pytest.mark.parametrize("window", [0, 24])
@pytest.mark.parametrize("lengths", [[30, 1, 200], [17, 0, 0]])
def test_a_decode_step_is_what_the_others_do(calls, lengths, window):
    options = norms_and_rotation(64, torch.float32, 32)
    step = DecodeStep.random(lengths, SHAPE, torch.float32)
    other = step.copy()
    decode, others = backends()
    rotation = Rotation(**options, eps=1e-5, is_neox=False, rotary_offset=16)
    qkv = step.arguments["qkv"].contiguous()
    expected = others.attend(qkv.clone(), 1, window, batch_of(other), rotation)
    actual = decode.attend(qkv.clone(), 1, window, batch_of(step), rotation)
    assert len(calls) == 1
    assert_near(actual, expected, 1e-5)
    assert_near(torch.nan_to_num(step.cache), torch.nan_to_num(other.cache), 1e-5)


def test_prompts_and_mixed_batches_go_to_the_others(calls):
    step = DecodeStep.random([30, 40], SHAPE, torch.float32)
    step.cache.nan_to_num_()
    decode, others = backends()
    rows = step.arguments["qkv"].contiguous()[:1].repeat(3, 1)
    batch = replace(
        batch_of(step),
        positions=torch.tensor([28, 29, 39], dtype=torch.int32),
        cu_seqlens_q=torch.tensor([0, 2, 3], dtype=torch.int32),
        slot_mapping=(torch.full((3,), -1, dtype=torch.int32),) * 2,
        max_seqlen_q=2,
    )
    mixed = decode.attend(rows.clone(), 1, 0, batch, Rotation())
    assert_near(mixed, others.attend(rows.clone(), 1, 0, batch, Rotation()))
    # One sequence has no token in this step: its row is not its own.
    fewer = replace(
        batch,
        cu_seqlens_q=torch.tensor([0, 0, 1], dtype=torch.int32),
        positions=batch.positions[:1],
        slot_mapping=(batch.slot_mapping[0][:1],) * 2,
        max_seqlen_q=1,
    )
    decode.attend(rows[:1].clone(), 1, 0, fewer, Rotation())
    assert not calls


def test_all_layers_share_counters(calls, monkeypatch):
    given = []
    monkeypatch.setattr(
        ops, "decode_attention", lambda qkv, cache, counters, *rest, **named: given.append(counters)
    )
    step = DecodeStep.random([30], SHAPE, torch.float32)
    decode, _ = backends()
    for _ in range(2):
        decode.attend(step.arguments["qkv"], 1, 0, batch_of(step), Rotation())
    assert given[0] is given[1]
    assert not given[0].any()
