# SPDX-License-Identifier: Apache-2.0
"""How a captured step takes over others: in place, smaller batches, lengths and padding."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rtp_llm import compat
from rtp_llm.compat.fused_rope_params import padding_offsets
from rtp_llm.testing.fused_steps import MAX_TOKENS, Step, configs

BASE = compat.RopeSettings(compat.RopeStyle.Base, 64)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def test_a_step_is_taken_over_in_place() -> None:
    step = Step.random(configs(BASE), 2, torch.float32)
    operator = compat.FusedRopeKVCachePrefillOpQOut(step.config)
    captured = operator.prepare(step.prefill([9, 30], [40, 2]))
    offsets = captured.kv_cache_offset
    fresh = operator.prepare(step.prefill([4, 8], [7, 40]))
    fresh.kv_cache_offset = fresh.kv_cache_offset[..., :5]
    captured.copy_(fresh)
    assert captured.kv_cache_offset is offsets
    assert torch.equal(offsets[..., :5], fresh.kv_cache_offset)
    assert not offsets[..., 5:].any()
    assert torch.equal(captured.cu_seqlens, fresh.cu_seqlens)
    captured.update_kv_cache_offset(step.table()[:, :3])
    assert torch.equal(offsets[..., :3], fresh.kv_cache_offset[..., :3])
    assert not offsets[..., 3:].any()
    longer = operator.prepare(step.prefill([31, 1], [0, 0]))
    with pytest.raises(RuntimeError, match="max_seq_len is 31; the graph was captured for 30"):
        captured.copy_(longer)
    with pytest.raises(RuntimeError, match=r"captured for \[2, 1, 2, 8\]"):
        captured.copy_(replace(fresh, kv_cache_offset=offsets.repeat(1, 1, 1, 2)))


@pytest.mark.parametrize(
    ("kind", "padded"),
    [
        (compat.FusedRopeKVCachePrefillOpQOut, True),
        (compat.FusedRopeKVCachePrefillOpQOut, False),
        (compat.FusedRopeKVCachePrefillOpQKVOut, False),
    ],
)
def test_more_tokens_than_were_captured_are_refused(kind: type, padded: bool) -> None:
    """As many requests and none longer: the rows of the projection are too few all the same."""
    step = Step.random(configs(BASE), 2, torch.float32)
    operator = kind(step.config)
    captured = operator.prepare(step.prefill([5, 1], [0, 0], is_s_padded=padded))
    more = step.prefill([4, 4], [0, 0])
    for take_over in (
        lambda: captured.prepare_in_place(more),
        lambda: captured.copy_(operator.prepare(more)),
    ):
        with pytest.raises(RuntimeError, match="tokens is 8; the graph was captured for 6"):
            take_over()
        assert captured.cu_seqlens.tolist() == [0, 5, 6]
    # Fewer, and as many again after them: the capture's number counts, not the last step's.
    captured.prepare_in_place(step.prefill([2, 1], [0, 0]))
    captured.prepare_in_place(step.prefill([3, 3], [0, 0]))
    assert captured.cu_seqlens.tolist() == [0, 3, 6]


def test_sums_of_a_smaller_batch_go_on_as_they_end() -> None:
    step = Step.random(configs(BASE), 5, torch.float32)
    operator = compat.FusedRopeKVCachePrefillOpQOut(step.config)
    captured = operator.prepare(step.prefill([20] * 5, [60] * 5, is_s_padded=True))
    smaller = replace(step, physical=step.physical[:2])
    captured.prepare_in_place(smaller.prefill([4, 7], [9, 0]))
    assert captured.cu_seqlens.tolist() == [0, 4, 11, 11, 11, 11]
    assert captured.cu_kv_seqlens.tolist() == [0, 13, 20, 20, 20, 20]
    assert captured.input_lengths.tolist() == [4, 7, 0, 0, 0]
    assert captured.prefix_lengths.tolist() == [9, 0, 0, 0, 0]
    assert (captured.kv_cache_offset[2:] == -1).all()
    offsets = compat.convert_offset_to_block_array(smaller.table(), step.config.num_kernel_blocks)
    assert torch.equal(captured.kv_cache_offset[:2], offsets)
    with pytest.raises(RuntimeError, match=r"captured for \[5, 1, 2, 8\]"):
        six = replace(step, physical=step.physical[:1].repeat(6, 1))
        captured.prepare_in_place(six.prefill([1] * 6, [0] * 6))


def test_padding_keeps_the_stride_of_the_capture() -> None:
    step = Step.random(configs(BASE), 3, torch.float32)
    operator = compat.FusedRopeKVCachePrefillOpQOut(step.config)
    captured = operator.prepare(step.prefill([9] * 3, [5] * 3, is_s_padded=True))
    assert captured.padding_offset is not None
    assert not captured.padding_offset.any()
    captured.prepare_in_place(step.prefill([2, 4, 1], [3, 0, 5]))
    rows = torch.arange(7) + captured.padding_offset[:7]
    assert rows.tolist() == [0, 1, 9, 10, 11, 12, 18]
    qkv = step.qkv(27)
    out = operator.forward(qkv, step.cache, captured)
    fresh = operator.prepare(step.prefill([2, 4, 1], [3, 0, 5]))
    assert torch.equal(out[rows], operator.forward(qkv[:7], step.cache, fresh))


def test_padding_offsets_follow_the_formula() -> None:
    lengths = torch.randint(0, 9, (20,))
    sums = torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0))).int()
    expected = [b * 11 - sums[b].item() for b in range(20) for _ in range(int(lengths[b]))]
    assert padding_offsets(sums, len(expected), 11).tolist() == expected


def test_runtime_lengths_come_from_the_host_and_within_the_capture() -> None:
    step = Step.random(configs(BASE), 2, torch.float32)
    operator = compat.FusedRopeKVCachePrefillOpQOut(step.config)
    params: compat.CKAttn = operator.prepare(step.prefill([8, 3], [2, 40], is_s_padded=True))
    assert (params.max_seq_len, params.max_prefix_length) == (8, 40)
    params.update_prefill_runtime(5, 17)
    assert (params.max_seq_len, params.max_prefix_length) == (5, 17)
    params.update_prefill_runtime(8, 40)
    for lengths, message in (((9, 0), "max_seq_len is 9"), ((1, 41), "max_prefix_length is 41")):
        with pytest.raises(RuntimeError, match=message):
            params.update_prefill_runtime(*lengths)


def test_the_longest_prefix_and_query_may_be_of_different_requests() -> None:
    step = Step.random(configs(BASE), 2, torch.float32)
    operator = compat.FusedRopeKVCachePrefillOpQOut(step.config)
    params = operator.prepare(step.prefill([1, 30], [90, 2]))
    assert (params.max_seq_len, params.max_prefix_length) == (30, 90)
    assert params.context_total_kv_length == 123
    decode = compat.FusedRopeKVCacheDecodeOp(step.config)
    assert decode.prepare(step.decode([MAX_TOKENS - 1, 3])).max_seq_len == 0
