# SPDX-License-Identifier: Apache-2.0
"""Python bindings of the C++ runtime."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from rtp_llm.native import load_runtime

if TYPE_CHECKING:
    from rtp_llm._runtime import Scheduler

runtime = load_runtime()

BLOCK = 4


def make_scheduler(num_blocks: int = 33, **changes: Any) -> Scheduler:
    settings = {"max_running": 4, "max_queued": 8, "max_batch_tokens": 16, "max_model_len": 64}
    groups = changes.pop("groups", [runtime.CacheGroup("full", num_blocks, BLOCK)])
    return runtime.Scheduler(runtime.SchedulerConfig(groups, **(settings | changes)))


def commit(scheduler: Scheduler, token: int) -> None:
    scheduler.commit(np.full(scheduler.batch.num_rows, token, np.int32))


def test_prompt_in_chunks() -> None:
    scheduler = make_scheduler()
    prompt = np.arange(100, 120, dtype=np.int32)
    (slot,) = scheduler.add([1 << 60], prompt, max_tokens=2, sampling_flags=5)
    assert scheduler.schedule()
    batch = scheduler.batch
    assert (batch.num_seqs, batch.num_tokens, batch.num_rows) == (1, 16, 0)
    np.testing.assert_array_equal(batch.token_ids, prompt[:16])
    np.testing.assert_array_equal(batch.cu_seqlens_q, [0, 16])
    commit(scheduler, 0)
    assert scheduler.result.num_rows == 0

    assert scheduler.schedule()
    assert (batch.num_tokens, batch.num_rows) == (4, 1)
    assert (batch.max_seqlen_q, batch.max_seqlen_k) == (4, 20)
    np.testing.assert_array_equal(batch.positions, [16, 17, 18, 19])
    table = batch.block_table[0]
    assert table.shape[0] == 1 and (table[0, :5] > 0).all() and (table[0, 5:] == -1).all()
    np.testing.assert_array_equal(
        batch.slot_mapping[0], table[0, 4] * BLOCK + np.arange(4, dtype=np.int32)
    )
    assert batch.logit_rows.tolist() == [3]
    assert batch.row_ids.tolist() == [1 << 60]
    assert batch.row_slots.tolist() == [slot]
    assert batch.row_steps.tolist() == [0]
    assert batch.sampling_flags == 5


def test_decode_to_the_end() -> None:
    scheduler = make_scheduler()
    scheduler.add([7], [1, 2, 3], max_tokens=2)
    for step, finish in enumerate([0, 3]):
        assert scheduler.schedule()
        assert scheduler.batch.row_steps.tolist() == [step]
        assert scheduler.batch.token_ids.tolist() == [[1, 2, 3], [50]][step]
        commit(scheduler, 50 + step)
        result = scheduler.result
        assert result.ids.tolist() == [7]
        assert result.tokens.tolist() == [[50 + step]]
        assert result.num_tokens.tolist() == [1]
        assert result.finish.tolist() == [finish]
    assert not scheduler.has_work
    assert not scheduler.schedule()
    scheduler.check_integrity()


def test_dtypes_and_groups() -> None:
    groups = [
        runtime.CacheGroup("full", 20, BLOCK),
        runtime.CacheGroup("sliding_window", 40, BLOCK, window=6, first_block=20),
    ]
    scheduler = make_scheduler(groups=groups)
    scheduler.add([1, 2], [5] * 9, max_tokens=4, needs_history=True)
    scheduler.schedule()
    batch = scheduler.batch
    for name in ["token_ids", "positions", "cu_seqlens_q", "seq_lens", "logit_rows", "row_slots"]:
        assert getattr(batch, name).dtype == np.int32, name
    for name in ["seq_ids", "row_ids", "row_steps"]:
        assert getattr(batch, name).dtype == np.int64, name
    for name in ["slot_mapping", "block_table", "copy_pairs"]:
        arrays = getattr(batch, name)
        assert len(arrays) == 2, name
        assert all(array.dtype == np.int32 and array.flags.c_contiguous for array in arrays)
    assert batch.block_table[0].max() < 20 <= batch.block_table[1][0, :3].min()
    assert batch.logit_rows.tolist() == [8, 8], "both sequences sample from one row"
    assert batch.history_cu.tolist() == [0, 9, 18]
    assert batch.history_tokens.tolist() == [5] * 18
    scheduler.commit(np.array([1, 2], np.int32))
    scheduler.schedule()
    for pairs in batch.copy_pairs:
        assert pairs.shape == (1, 2), "one of the two copies the last block"
    scheduler.commit(np.array([3, 3], np.int32))
    assert scheduler.result.finish.dtype == np.uint8
    scheduler.check_integrity()


def test_recurrent_groups_have_states_in_place_of_tables() -> None:
    groups = [
        runtime.CacheGroup("full", 20, BLOCK),
        runtime.CacheGroup("recurrent", 6, 2 * BLOCK),
    ]
    scheduler = make_scheduler(groups=groups)
    scheduler.add([1, 2], [5] * 11, max_tokens=4)
    scheduler.schedule()
    batch = scheduler.batch
    for name in ["slot_mapping", "block_table", "state_read", "state_write"]:
        arrays = getattr(batch, name)
        assert len(arrays) == 2, name
        assert all(array.dtype == np.int32 and array.flags.c_contiguous for array in arrays)
    assert (batch.slot_mapping[0].shape, batch.slot_mapping[1].shape) == ((8,), (0,))
    assert batch.block_table[1].shape == (0, 0)
    assert batch.state_read[0].shape == batch.state_write[0].shape == (0,)
    assert batch.state_read[1].tolist() == [-1], "it starts from zeros"
    snapshot = int(batch.state_write[1][0])
    scheduler.commit(np.zeros(0, np.int32))
    scheduler.schedule()
    assert batch.state_read[1].tolist() == [snapshot]
    prompt = int(batch.state_write[1][0])
    assert prompt != snapshot, "a published block is not written again"
    scheduler.commit(np.array([1, 2], np.int32))
    scheduler.schedule()
    assert batch.state_read[1].tolist() == [prompt, prompt], "both go on from there"
    assert len({prompt, *batch.state_write[1].tolist()}) == 3
    assert batch.copy_pairs[1].shape == (0, 2)
    full, recurrent = scheduler.stats()["groups"]
    assert (full["total_blocks"], recurrent["total_blocks"]) == (19, 5)
    assert recurrent == {"total_blocks": 5, "free_blocks": 2, "cached_blocks": 1}
    scheduler.check_integrity()


def test_a_budget_below_a_recurrent_block_is_refused() -> None:
    groups = [runtime.CacheGroup("recurrent", 6, 32)]
    with pytest.raises(ValueError, match=r"max_batch_tokens=16 .* block_size=32"):
        make_scheduler(groups=groups)
    with pytest.raises(ValueError, match="recurrent_snapshot_interval=-1"):
        make_scheduler(recurrent_snapshot_interval=-1)
    config = runtime.SchedulerConfig(groups, max_model_len=64, recurrent_snapshot_interval=3)
    assert config.recurrent_snapshot_interval == 3
    assert config.groups[0].kind == "recurrent"


def test_drafts() -> None:
    scheduler = make_scheduler(max_draft_tokens=3)
    scheduler.add([1], [5] * 9, max_tokens=9, needs_history=True)
    scheduler.add([2], [6] * 3, max_tokens=9)
    scheduler.schedule()
    scheduler.commit(np.array([7, 7], np.int32))
    ids, lengths = np.array([1, 2, 99]), np.array([2, 0, 1], np.int32)
    tokens = np.array([[3, -1, 0], [0, 0, 0], [1, 1, 1]], np.int32)
    with pytest.raises(ValueError, match="lengths"):
        scheduler.schedule((ids, tokens, lengths[:1]))
    with pytest.raises(ValueError, match="token id -2 is below -1"):
        scheduler.schedule((ids, tokens - 1, lengths))
    with pytest.raises(ValueError, match="max_draft_tokens=3"):
        scheduler.schedule((ids, np.zeros((3, 4), np.int32), lengths))
    assert scheduler.schedule((ids, tokens, lengths))
    batch = scheduler.batch
    assert (batch.num_seqs, batch.num_tokens, batch.num_rows, batch.num_outputs) == (2, 4, 4, 2)
    assert batch.row_cu.tolist() == [0, 1, 4]
    assert batch.token_ids.tolist() == [7, 7, 3, 0]
    assert batch.draft_tokens.tolist() == [-1, 3, -1, -1]
    assert batch.row_steps.tolist() == [1, 1, 2, 3]
    assert batch.history_cu.tolist() == [0, 0, 10, 11, 12]
    assert batch.history_tokens.tolist() == [5] * 9 + [7, 3, 0]
    scheduler.commit(np.array([[8, -1], [3, 4]], np.int32))
    assert scheduler.result.tokens.tolist() == [[8, -1], [3, 4]]
    assert scheduler.result.num_tokens.tolist() == [1, 2]
    assert scheduler.schedule()
    assert batch.positions.tolist() == [11, 4]
    scheduler.check_integrity()


def test_views_are_not_copies_and_keep_the_scheduler_alive() -> None:
    scheduler = make_scheduler()
    scheduler.add([1], [1, 2, 3], max_tokens=4)
    scheduler.schedule()
    first, second = scheduler.batch.token_ids, scheduler.batch.token_ids
    assert first.flags.writeable and not first.flags.owndata
    assert np.shares_memory(first, second)
    table = scheduler.batch.block_table[0]
    before = table.copy()
    del scheduler, second
    gc.collect()
    np.testing.assert_array_equal(first, [1, 2, 3])
    np.testing.assert_array_equal(table, before)


def test_prefix_cache_and_extra_key() -> None:
    scheduler = make_scheduler(num_blocks=16)
    prompt = list(range(13))

    def cached_tokens(extra_key: bytes) -> int:
        scheduler.add([1], prompt, max_tokens=1, extra_key=extra_key)
        scheduler.schedule()
        commit(scheduler, 3)
        return int(scheduler.result.cached_tokens[0])

    assert [cached_tokens(key) for key in (b"", b"", b"\0a", b"\0b")] == [0, 12, 0, 0]
    stats = scheduler.stats()
    assert (stats["prefix_hit_tokens"], stats["prefix_query_tokens"]) == (12, 4 * 13)
    assert stats["cached_blocks"] == 9
    assert stats["free_blocks"] == stats["total_blocks"] == 15


def test_errors() -> None:
    scheduler = make_scheduler()
    for problem, ids, prompt, options in [
        ("at least one token", [1], [], {}),
        ("at least one sequence", [], [1], {}),
        ("negative", [1], [1, -2], {}),
        ("in use", [1, 1], [1], {}),
        ("max_tokens=0", [1], [1], {"max_tokens": 0}),
        ("min_tokens=-1", [1], [1], {"min_tokens": -1}),
        ("max_model_len=64", [1], [1] * 64, {}),
        ("max_running=4", [1, 2, 3, 4, 5], [1], {}),
        ("one-dimensional", [1], [[1, 2]], {}),
    ]:
        with pytest.raises(ValueError, match=problem):
            scheduler.add(ids, prompt, **({"max_tokens": 1} | options))
    with pytest.raises(TypeError):
        scheduler.add([1], np.ones(3, np.float32), max_tokens=1)
    for first in (0, 4, 8):
        scheduler.add(list(range(first, first + 4)), [1], max_tokens=1)
    with pytest.raises(runtime.QueueFullError, match="12 sequences"):
        scheduler.add([99], [1], max_tokens=1)
    assert issubclass(runtime.QueueFullError, RuntimeError)
    assert scheduler.abort([0, 5, 1234]) == 2
    assert scheduler.abort(list(range(12))) == 10
    assert not scheduler.schedule()
    with pytest.raises(ValueError, match="num_blocks"):
        make_scheduler(num_blocks=1)
    with pytest.raises(ValueError, match="kind"):
        runtime.CacheGroup("ring", 4, 4)
    with pytest.raises(ValueError, match="max_running=0"):
        make_scheduler(max_running=0)
    tight = make_scheduler(num_blocks=4)
    with pytest.raises(ValueError, match=r"need 4 cache blocks .* there are 3"):
        tight.add([1], [1] * 10, max_tokens=4)
    tight.add([1], [1] * 10, max_tokens=3)


def test_commit_checks_before_it_changes_anything() -> None:
    scheduler = make_scheduler()
    with pytest.raises(ValueError, match="without a scheduled batch"):
        scheduler.commit(np.zeros(1, np.int32))
    scheduler.add([1], [1, 2], max_tokens=9)
    scheduler.schedule()
    with pytest.raises(RuntimeError, match="committed"):
        scheduler.schedule()
    for wrong in (np.zeros(2, np.int32), np.array([-1], np.int32), np.zeros((1, 65), np.int32)):
        with pytest.raises(ValueError):
            scheduler.commit(wrong)
    with pytest.raises(ValueError):
        scheduler.commit(np.zeros((1, 1, 1), np.int32))
    with pytest.raises(TypeError):
        scheduler.commit(np.zeros(1, np.float32))
    commit(scheduler, 5)
    assert scheduler.result.tokens.tolist() == [[5]]
    scheduler.schedule()
    assert scheduler.batch.positions.tolist() == [2]


def test_a_prompt_of_another_worker() -> None:
    scheduler = make_scheduler()
    scheduler.set_connector(lambda sequence, computed: 9 - computed)
    scheduler.add([1], np.arange(9, dtype=np.int32), max_tokens=4)
    assert not scheduler.schedule()
    [(each, _, computed, end)] = scheduler.take_receivers()
    assert (each, computed, end) == (1, 0, 9)
    (blocks,) = scheduler.pin(1, 0, 3)
    assert blocks.dtype == np.int32 and len(set(blocks.tolist())) == 3
    assert scheduler.stats()["receiving"] == scheduler.stats()["held"] == 1
    assert scheduler.unpin(1) and not scheduler.unpin(1)
    assert scheduler.finish_recv(1, 5, cached_tokens=4) == 0
    with pytest.raises(ValueError, match="waits for no load"):
        scheduler.recompute(1)
    assert scheduler.schedule()
    assert scheduler.batch.token_ids.tolist() == [5]


def test_a_part_of_a_prompt_that_is_loaded() -> None:
    scheduler = make_scheduler()
    scheduler.set_connector(lambda sequence, computed: 4 - computed)
    scheduler.add([1], np.arange(9, dtype=np.int32), max_tokens=4)
    assert scheduler.block_keys(1).shape == (2, 2) and scheduler.take_evicted() is None
    assert not scheduler.schedule()
    [(_, _, computed, end)] = scheduler.take_receivers()
    assert (computed, end) == (0, 4)
    scheduler.finish_load(1, 4)
    assert scheduler.schedule()
    assert scheduler.batch.token_ids.tolist() == [4, 5, 6, 7, 8]


def test_what_a_connector_raises_ends_the_schedule() -> None:
    scheduler = make_scheduler()

    def broken(sequence: int, computed: int) -> int:
        raise OSError("no store")

    scheduler.set_connector(broken)
    scheduler.add([1], np.arange(9, dtype=np.int32), max_tokens=4)
    with pytest.raises(OSError, match="no store"):
        scheduler.schedule()


def test_evicted_blocks() -> None:
    scheduler = make_scheduler()
    scheduler.set_connector(lambda sequence, computed: 0)
    keys, evicted = [], []
    for number in range(8):
        scheduler.add([number], np.arange(16, dtype=np.int32) + 100 * number, max_tokens=2)
        keys += scheduler.block_keys(number).tolist()
        while scheduler.schedule():
            if (blocks := scheduler.take_evicted()) is not None:
                evicted.append(blocks)
            commit(scheduler, 7)
    found = [key for each in evicted for key in each[0].tolist()]
    assert found and len(set(map(tuple, found))) == len(found)
    known = dict(zip(map(tuple, keys), range(len(keys)), strict=True))
    for of_keys, groups, blocks, tokens in evicted:
        assert of_keys.dtype == np.uint64 and groups.dtype == blocks.dtype == np.int32
        assert not groups.any() and tokens.shape == (len(of_keys), 4)
        for key, block_tokens in zip(of_keys.tolist(), tokens.tolist(), strict=True):
            if (number := known.get(tuple(key))) is not None:
                sequence, block = divmod(number, 3)
                first = 100 * sequence + 4 * block
                assert block_tokens == list(range(first, first + 4))


def test_a_prompt_that_wants_no_token() -> None:
    scheduler = make_scheduler()
    scheduler.add([7], list(range(5)), max_tokens=1, prompt_only=True)
    assert scheduler.schedule()
    assert (scheduler.batch.num_seqs, scheduler.batch.num_rows) == (1, 0)
    scheduler.commit(np.empty(0, np.int32))
    result = scheduler.result
    assert (result.ids.tolist(), result.finish.tolist(), result.num_tokens.tolist()) == (
        [7],
        [6],
        [0],
    )
    assert not scheduler.has_work
    scheduler.add([8], list(range(5)), max_tokens=1, prompt_only=True)
    assert scheduler.abort([8], not_finite=True) == 1


def test_forks() -> None:
    scheduler = make_scheduler()
    scheduler.add([1], list(range(5)), max_tokens=9)
    with pytest.raises(ValueError, match="sequence 1 has no output yet"):
        scheduler.fork(1, [2])
    assert scheduler.schedule()
    commit(scheduler, 7)
    assert len(scheduler.fork(1, [2, 3], last_tokens=[8, 9])) == 2
    assert scheduler.schedule()
    assert scheduler.batch.seq_ids.tolist() == [1, 2, 3]
    assert scheduler.batch.token_ids.tolist() == [7, 8, 9]
    scheduler.check_integrity()


def test_tenants_take_turns() -> None:
    scheduler = make_scheduler(max_running=1)
    prompt = np.arange(4, dtype=np.int32)
    for number in range(3):
        scheduler.add([number], prompt + 10 * number, max_tokens=1, tenant="flood")
    scheduler.add([3], prompt + 50, max_tokens=1, tenant="other", tenant_weight=2.0)
    order = []
    while scheduler.schedule():
        order += scheduler.batch.seq_ids.tolist()
        commit(scheduler, 7)
    assert order == [0, 3, 1, 2]
    with pytest.raises(ValueError, match="tenant_weight=0"):
        scheduler.add([9], prompt, max_tokens=1, tenant_weight=0.0)
