# SPDX-License-Identifier: Apache-2.0
"""What is made from the declaration of a step's arrays follows it."""

from __future__ import annotations

import numpy as np
import pytest

from rtp_llm.native import load_runtime
from rtp_llm.worker.plan import generate
from rtp_llm.worker.plan.arrays import (
    ARRAYS,
    DEVICE_ARRAYS,
    GROUP_ARRAYS,
    NUMBERS,
    device_arrays,
)
from rtp_llm.worker.plan.extents import Extent
from rtp_llm.worker.plan.layout import PlanLayout
from rtp_llm.worker.plan.reader import PlanReader
from rtp_llm.worker.plan.step_plan import HeadPlan, StepPlan


def make_scheduler(**settings):
    runtime = load_runtime()
    groups = [
        runtime.CacheGroup("full", 64, 4),
        runtime.CacheGroup("sliding_window", 64, 4, window=8),
        runtime.CacheGroup("recurrent", 16, 16),
    ]
    config = runtime.SchedulerConfig(groups, max_model_len=64, max_running=8, **settings)
    return runtime.Scheduler(config)


def prompt(length):
    return np.arange(length, dtype=np.int32)


def scheduled(**settings):
    scheduler = make_scheduler(**settings)
    prompts = np.arange(30, dtype=np.int32).reshape(2, 15) + 1
    for ids, prompt in (([1], prompts[0]), ([2, 3], prompts[1])):
        scheduler.add(ids, prompt, max_tokens=4, needs_history=True)
    assert scheduler.schedule()
    return scheduler


def test_the_c_plus_plus_half_was_generated_from_this_declaration() -> None:
    assert generate.PATH.read_text(encoding="utf-8") == generate.batch_arrays(), (
        "run python -m rtp_llm.worker.plan.generate"
    )


def test_the_runtime_has_every_number_and_array() -> None:
    batch = scheduled(mrope=True, adapters=True, token_types=True).batch
    lengths = {
        Extent.TOKENS: batch.num_tokens,
        Extent.TOKEN_AXES: batch.num_tokens,
        Extent.SEQUENCES: batch.num_seqs,
        Extent.ROWS: batch.num_rows,
        Extent.SEQUENCE_STARTS: batch.num_seqs + 1,
        Extent.OUTPUT_STARTS: batch.num_outputs + 1,
        Extent.ROW_STARTS: batch.num_rows + 1,
        Extent.HISTORY: batch.history_cu[-1],
    }
    assert (batch.num_seqs, batch.num_tokens, batch.num_rows) == (2, 30, 3)
    for each in ARRAYS:
        array = getattr(batch, each.name)
        width = () if each.extent.width == 1 else (each.extent.width,)
        assert (array.dtype, array.shape) == (each.dtype, (lengths[each.extent], *width)), each.name
    for each in GROUP_ARRAYS:
        groups = getattr(batch, each.name)
        assert len(groups) == 3
        kinds = [len(array) > 0 for array in groups]
        recurrent = each.extent is Extent.GROUP_STATES
        if each.extent is not Extent.GROUP_COPIES:
            assert kinds == [not recurrent, not recurrent, recurrent], each.name
    assert all(isinstance(getattr(batch, name), int) for name in NUMBERS)


def test_a_plan_has_no_array_that_nobody_needs() -> None:
    needed = [each for each in ARRAYS if each.needs is not None]
    settings = {"mrope", "adapters", "token_types"}
    assert {each.needs for each in needed} == settings
    scheduler = scheduled(shared_batch=True)
    layout = PlanLayout.of(scheduler)
    for each in needed:
        assert getattr(scheduler.batch, each.name).size == 0
        assert layout.offsets[each.name] < 0
    assert not {each.name for each in needed} & {each.name for each in device_arrays(())}
    assert device_arrays(settings) == DEVICE_ARRAYS


def test_offsets_of_three_axes_go_on_after_the_prompt() -> None:
    scheduler = make_scheduler(mrope=True)
    offsets = np.arange(15, dtype=np.int32).reshape(5, 3)
    scheduler.add([1], prompt(5), max_tokens=4, mrope_offsets=offsets, mrope_position_delta=-2)
    scheduler.add([2], prompt(3), max_tokens=4)
    assert scheduler.schedule()
    expected = np.concatenate([offsets, np.zeros((3, 3))])
    np.testing.assert_array_equal(scheduler.batch.mrope_offsets, expected)
    scheduler.commit(np.array([3, 4], np.int32))
    assert scheduler.schedule()
    np.testing.assert_array_equal(scheduler.batch.mrope_offsets, [[-2, -2, -2], [0, 0, 0]])


def test_a_sequence_names_its_adapter() -> None:
    scheduler = make_scheduler(adapters=True)
    scheduler.add([1, 2], prompt(5), max_tokens=4, adapter_slot=3)
    scheduler.add([3], prompt(3), max_tokens=4)
    assert scheduler.schedule()
    assert scheduler.batch.adapter_slots.tolist() == [3, -1]
    scheduler.commit(np.array([3, 4, 5], np.int32))
    assert scheduler.schedule()
    assert scheduler.batch.adapter_slots.tolist() == [3, 3, -1]


def test_a_sequence_says_where_its_second_text_begins() -> None:
    scheduler = make_scheduler(token_types=True)
    scheduler.add([1], prompt(5), max_tokens=4, second_text=3)
    scheduler.add([2], prompt(3), max_tokens=4)
    assert scheduler.schedule()
    assert scheduler.batch.second_texts.tolist() == [3, 0]
    with pytest.raises(ValueError, match="second_text=5 must be a place in the prompt"):
        scheduler.add([3], prompt(5), max_tokens=4, second_text=5)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"second_text": 1}, "token_types is not set"),
        ({"mrope_offsets": np.zeros((5, 3), np.int32)}, "mrope is not set"),
        ({"adapter_slot": 0}, "adapters is not set"),
        ({"spans": [(2, 4, b"a")]}, "4 tokens from 2"),
        ({"spans": [(0, 2, b"a"), (1, 2, b"b")]}, "2 tokens from 1 .* overlap"),
        ({"spans": [(0, 0, b"a")]}, "0 tokens from 0"),
    ],
)
def test_inputs_that_no_prompt_has_are_refused(wrong, message) -> None:
    with pytest.raises(ValueError, match=message):
        make_scheduler().add([1], prompt(5), max_tokens=4, **wrong)


@pytest.mark.parametrize("needs", [{}, {"mrope": True, "adapters": True}])
def test_a_rank_reads_what_the_scheduler_shares(needs) -> None:
    scheduler = scheduled(shared_batch=True, **needs)
    batch = scheduler.batch
    descriptor, _ = scheduler.shared_memory
    tables = zip(batch.block_table, batch.copy_pairs, strict=True)
    of_groups = [number for table, pairs in tables for number in (table.shape[1], len(pairs))]
    published = [*(getattr(batch, name) for name in NUMBERS), *of_groups]
    plan = PlanReader(PlanLayout.of(scheduler), descriptor).read(published)
    assert isinstance(plan, StepPlan)
    for name in NUMBERS:
        assert getattr(plan, name) == getattr(batch, name)
    for each in ARRAYS:
        np.testing.assert_array_equal(getattr(plan, each.name), getattr(batch, each.name))
    for each in GROUP_ARRAYS:
        for one, other in zip(getattr(plan, each.name), getattr(batch, each.name), strict=True):
            if one.size or other.size:
                np.testing.assert_array_equal(one, other)


def test_a_copy_for_heads_stays_when_the_plan_changes() -> None:
    scheduler = scheduled()
    batch = scheduler.batch
    kept = HeadPlan.copied(batch)
    before = {name: np.array(getattr(batch, name)) for name in ("row_ids", "positions")}
    scheduler.commit(np.zeros(batch.num_outputs, np.int32))
    assert scheduler.schedule()
    assert not np.array_equal(batch.positions, kept.positions)
    for name, array in before.items():
        np.testing.assert_array_equal(getattr(kept, name), array)


def test_what_the_device_gets_is_staged_as_int32() -> None:
    assert all(each.dtype == np.int32 for each in DEVICE_ARRAYS)
