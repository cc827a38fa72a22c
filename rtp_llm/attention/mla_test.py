# SPDX-License-Identifier: Apache-2.0
"""MLA: which form a sequence takes, what is refused, both forms in the layer."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from rtp_llm import ops
from rtp_llm.attention import (
    ForwardBatch,
    HostNumbers,
    MlaConfig,
    MlaWeights,
    explain,
    make_backend,
    mla,
    mla_step,
)
from rtp_llm.attention.mla import context_bytes
from rtp_llm.attention.mla_cuda_sm90 import CudaSm90MlaBackend
from rtp_llm.attention.mla_step import EXPANDED_BLOCK, MAX_EXPANDED_KEYS, MlaSizes, plan_step
from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.device.capabilities import HOST
from rtp_llm.device.choice import NoChoiceError
from rtp_llm.testing.capabilities import AMPERE, HOPPER, XPU

DEEPSEEK = MlaSizes(512, 64, 128, 128)
CONFIG = MlaConfig(
    HOST, torch.float32, torch.float32, 4, latent_size=24, rope_size=8, nope_size=12,
    value_size=10, scale=20**-0.5, block_size=4,
)  # fmt: skip


def prepared(backend, batch):
    return replace(batch, prepared=(backend.prepare(batch, 0),))


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


def expands(queries, keys):
    return DEEPSEEK.expands(np.array(queries), np.array(keys)).tolist()


def test_the_form_with_less_work_is_taken():
    # A decode, a short chunk after a long context, a long one, a whole prompt, few tokens.
    assert expands([1, 64, 512, 900, 5], [8000, 8000, 8000, 900, 5]) == [
        False,
        False,
        True,
        True,
        False,
    ]
    # With much context the border is where R (Dn + Dv) = q (2 R - Dn - Dv).
    assert expands([160, 180], [100_000, 100_000]) == [False, True]


def batch_of(lengths, block=4, seed=0):
    """(queries, keys) of sequences, in a cache of NaN but for the keys before the queries."""
    generator = torch.Generator().manual_seed(seed)
    queries = [new for new, _ in lengths]
    room = [-(-keys // block) for _, keys in lengths]
    blocks = torch.randperm(sum(room) + 1, generator=generator).int()
    table = torch.full((len(lengths), max(room)), -1, dtype=torch.int32)
    cache = torch.full((1, sum(room) + 1, block, 1, 32), torch.nan)
    slots, positions = [], []
    for row, (new, keys) in enumerate(lengths):
        first = sum(room[:row])
        table[row, : room[row]] = blocks[first : first + room[row]]
        place = torch.arange(keys)
        slot = table[row].long()[place // block] * block + place % block
        cache.view(-1, 32)[slot[: keys - new]] = torch.randn(keys - new, 32, generator=generator)
        slots.append(slot[keys - new :])
        positions.append(place[keys - new :])
    sums = np.cumsum([0, *queries]).astype(np.int32)
    keys = np.array([count for _, count in lengths], dtype=np.int32)
    return ForwardBatch(
        token_ids=int32([0] * sum(queries)),
        positions=torch.cat(positions).int(),
        cu_seqlens_q=torch.from_numpy(sums),
        seq_lens=torch.from_numpy(keys),
        max_seqlen_q=max(queries),
        max_seqlen_k=int(keys.max()),
        slot_mapping=(torch.cat(slots).int(),),
        block_table=(table,),
        kv_cache=(cache,),
        layer_group=(0,),
        host=HostNumbers(sums, keys, (table.numpy(),)),
    )


# Expanded, a decode, expanded with context, a short chunk after a long context, no token.
MIXED = [(70, 70), (1, 33), (60, 90), (3, 200), (0, 5)]


def test_parts_hold_each_sequence_once():
    batch = batch_of(MIXED)
    step = plan_step(batch, MlaSizes(24, 8, 12, 10))
    assert step.expanded is not None
    assert step.absorbed is not None
    assert step.expanded.seq_lens.tolist() == [70, 90]
    assert step.absorbed.seq_lens.tolist() == [33, 200, 5]
    assert step.expanded.starts.tolist() == [0, 2 * EXPANDED_BLOCK]
    rows = torch.cat([step.expanded.rows, step.absorbed.rows])
    assert rows.sort().values.tolist() == list(range(134))
    # Every place names a key that was or will be written, even past the last key.
    table, block = batch.block_table[0], 4
    for row, count, first in ((0, 70, 0), (2, 90, 128)):
        room = -(-count // EXPANDED_BLOCK) * EXPANDED_BLOCK
        place = torch.arange(room).clamp(max=count - 1)
        expected = table[row].long()[place // block] * block + place % block
        assert torch.equal(step.expanded.places[first : first + room], expected)


def shared_prefix(prompts, new, prefix, block=64):
    """A step of prompts that share one prefix; its cache has a shape but no memory."""
    keys = np.full(prompts, prefix + new, dtype=np.int32)
    sums = np.arange(prompts + 1, dtype=np.int32) * new
    table = np.zeros((prompts, -(-(prefix + new) // block)), dtype=np.int32)
    return ForwardBatch(
        token_ids=int32([]),
        positions=int32([]),
        cu_seqlens_q=torch.from_numpy(sums),
        seq_lens=torch.from_numpy(keys),
        max_seqlen_q=new,
        max_seqlen_k=prefix + new,
        slot_mapping=(int32([]),),
        block_table=(torch.from_numpy(table),),
        kv_cache=(torch.empty(1, 2000, block, 1, 576, device="meta"),),
        layer_group=(0,),
        host=HostNumbers(sums, keys, (table,)),
    )


def test_the_keys_that_a_step_expands_are_bounded():
    """All would be less work expanded, and would gather four million keys."""
    batch = shared_prefix(prompts=40, new=200, prefix=100_000)
    assert all(expands([200] * 40, [100_200] * 40))
    step = plan_step(batch, DEEPSEEK)
    assert len(step.expanded.places) <= MAX_EXPANDED_KEYS == 2**18
    assert len(step.expanded.seq_lens) == 2  # 2 * 100,224 keys; a third one has no room
    assert len(step.absorbed.seq_lens) == 38
    rows = torch.cat([step.expanded.rows, step.absorbed.rows])
    assert rows.sort().values.tolist() == list(range(40 * 200))


def test_what_a_context_takes_is_bounded():
    """DeepSeek-V3 in 16 bits: a pass is full from few keys on, latents grow up to the bound."""
    few, at_limit, over_limit = (
        context_bytes(keys, DEEPSEEK, 128, torch.bfloat16) for keys in (8192, 2**18, 2**22)
    )
    assert few == 8192 * 1152 + 2**28
    assert at_limit == over_limit == 2**18 * 1152 + 2**28
    # The pass holds in 32 bits too, where one head of the most keys is all of it.
    assert mla._PASS_BYTES >= 2**18 * (128 + 128) * 4
    assert context_bytes(100, DEEPSEEK, 2, torch.float32) == 100 * (576 + 2 * 256) * 4


def test_one_sequence_beyond_the_bound_is_absorbed_and_leaves_room_for_others():
    lengths = [(40, 4000), (500, MAX_EXPANDED_KEYS), (600, MAX_EXPANDED_KEYS + 1)]
    queries, keys = (np.array(numbers, dtype=np.int32) for numbers in zip(*lengths, strict=True))
    chosen = np.ones(3, dtype=np.bool_)
    mla_step._keep_room(chosen, queries, mla_step._room(keys))
    assert chosen.tolist() == [False, True, False]


def test_numbers_go_to_a_device_from_pinned_memory(monkeypatch):
    """From pageable memory the host would wait for the step before."""
    there, copied = torch.device("meta"), []

    def pinned(arrays):
        copied.extend(arrays)
        return tuple(map(torch.from_numpy, arrays))

    batch = batch_of(MIXED)
    monkeypatch.setattr(mla_step, "pinned", pinned)
    monkeypatch.setattr(torch, "from_numpy", Mock(side_effect=torch.from_numpy))
    moved = {
        name: getattr(batch, name).to(there) for name in ("cu_seqlens_q", "seq_lens", "positions")
    }
    batch = replace(batch, block_table=(batch.block_table[0].to(there),), **moved)
    step = plan_step(batch, MlaSizes(24, 8, 12, 10))
    assert step.expanded.places.device == step.absorbed.rows.device == there
    assert len(copied) == torch.from_numpy.call_count == 7


def test_without_numbers_on_the_host_all_is_absorbed():
    step = plan_step(replace(batch_of(MIXED), host=None), MlaSizes(24, 8, 12, 10))
    assert step.expanded is None
    assert step.absorbed is not None
    assert step.absorbed.rows is None


@pytest.mark.parametrize("pass_bytes", [mla._PASS_BYTES, 40_000])
@pytest.mark.parametrize(("max_keys", "expanded"), [(MAX_EXPANDED_KEYS, [70, 90]), (130, [70])])
def test_a_mixture_gives_what_the_absorbed_form_gives(pass_bytes, max_keys, expanded, monkeypatch):
    """Heads of the expanded form may come in several passes, and only some keys have room."""
    monkeypatch.setattr(mla, "_PASS_BYTES", pass_bytes)
    monkeypatch.setattr(mla_step, "MAX_EXPANDED_KEYS", max_keys)
    torch.manual_seed(1)
    q, kv = torch.randn(134, 4, 20), torch.randn(134, 32)
    kv_b = torch.randn(4, 22, 24) / 5
    weights = MlaWeights(torch.rand(24), 1e-6, kv_b, kv_b[:, :12].transpose(1, 2).contiguous())
    cos_sin = torch.randn(200, 8)
    backend = make_backend(CONFIG)
    results, caches, written = [], [], []
    for host in (True, False):
        batch = replace(batch_of(MIXED), on_written=written.append)
        batch = prepared(backend, batch if host else replace(batch, host=None))
        if host:
            assert batch.prepared[0].expanded.seq_lens.tolist() == expanded
        results.append(backend.attend(q.clone(), kv, 0, cos_sin, weights, batch))
        caches.append(batch.kv_cache[0])
    assert written == [0, 0]
    assert results[0].shape == (134, 40)
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    assert torch.equal(torch.nan_to_num(caches[0]), torch.nan_to_num(caches[1]))


def test_the_table_of_expanded_rows_is_made_once_a_step():
    part = make_backend(CONFIG).prepare(batch_of(MIXED), 0).expanded
    assert part.table is part.table
    assert part.table.dtype == torch.int32
    for row, (start, keys) in enumerate(zip(part.starts, part.seq_lens, strict=True)):
        blocks = -(-int(keys) // EXPANDED_BLOCK)
        first = int(start) // EXPANDED_BLOCK
        assert part.table[row, :blocks].tolist() == list(range(first, first + blocks))
    assert int(part.table.max()) < len(part.places) // EXPANDED_BLOCK


def test_what_cannot_be_is_refused_with_the_reason():
    with pytest.raises(NoChoiceError, match="leave --kv-cache-dtype out"):
        make_backend(replace(CONFIG, kv_dtype=torch.float8_e4m3fn))
    with pytest.raises(NoChoiceError, match="no mla_rotate_and_store, mla_attention for it"):
        make_backend(replace(CONFIG, capabilities=XPU))
    with pytest.raises(NoChoiceError, match="--attention-backend cuda_sm90: "):
        make_backend(replace(CONFIG, settings=ModelSettings(attention_backend="cuda_sm90")))
    with pytest.raises(ValueError, match="not been prepared"):
        make_backend(CONFIG).attend(
            torch.randn(1, 4, 20),
            torch.randn(1, 32),
            0,
            None,
            MlaWeights(torch.rand(24), 1e-6, torch.randn(4, 22, 24)),
            batch_of([(1, 1)]),
        )


def test_hoppers_kernel_takes_only_its_sizes():
    real = replace(CONFIG, latent_size=512, rope_size=64, block_size=64, dtype=torch.bfloat16)
    for changed, reason in (
        ({}, "wgmma"),
        ({"capabilities": AMPERE}, "wgmma"),
    ):
        answer = CudaSm90MlaBackend.supports(replace(real, **changed))
        assert not answer
        assert reason in answer.reason


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"dtype": torch.float32}, "tensor cores"),
        ({"latent_size": 256}, "latents of 512"),
        ({"block_size": 48}, "blocks of 48"),
    ],
)
def test_what_hoppers_kernel_cannot_take(changed, reason, monkeypatch):
    monkeypatch.setattr(ops, "has_kernel", lambda name, kind: True)
    hopper = replace(
        CONFIG, capabilities=HOPPER, latent_size=512, rope_size=64,
        block_size=64, dtype=torch.bfloat16,
    )  # fmt: skip
    answer = CudaSm90MlaBackend.supports(replace(hopper, **changed))
    assert not answer
    assert reason in answer.reason


def test_the_choice_is_explained():
    text = explain(CONFIG)
    assert "4 heads over latents of 24 and keys of 8" in text
    assert "paged (priority 0): chosen" in text
    assert "triton (priority 10): no: its tiles" in text
    forced = explain(replace(CONFIG, settings=ModelSettings(attention_backend="paged")))
    assert "paged (priority 0): chosen by --attention-backend" in forced
    with pytest.raises(
        NoChoiceError, match="flashinfer is unknown; there are auto, cuda_sm90, triton, paged"
    ):
        make_backend(replace(CONFIG, settings=ModelSettings(attention_backend="flashinfer")))
