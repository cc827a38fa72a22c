# SPDX-License-Identifier: Apache-2.0
"""Tests of grouping rows by processor."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch

from rtp_llm.device import resolve_device
from rtp_llm.worker.heads.logits_processor import ProcessorTable


def batch(*slots: int) -> SimpleNamespace:
    count = len(slots)
    return SimpleNamespace(
        row_slots=np.array(slots, np.int32),
        row_ids=np.array(slots, np.int64) * 10,
        row_steps=np.arange(count, dtype=np.int64),
        history_tokens=np.arange(2 * count, dtype=np.int32),
        history_cu=np.arange(0, 2 * count + 1, 2, dtype=np.int32),
    )


class Adder:
    def __init__(self, amount: float) -> None:
        self.amount = amount
        self.seen: list[list[int]] = []
        self.histories: list[list[int]] = []

    def __call__(self, logits, rows):
        logits += self.amount
        self.seen.append(rows.sequence_ids.tolist())
        self.histories.append(rows.history(len(rows.rows) - 1).tolist())


def test_each_processor_changes_its_own_rows_once():
    table, one, two = ProcessorTable(8, resolve_device("cpu")), Adder(1.0), Adder(10.0)
    table.add([one], [2, 5])
    table.add([two, one], [3])
    logits = torch.zeros(4, 3)
    table.apply(logits, batch(5, 0, 3, 2))
    assert logits[:, 0].tolist() == [1.0, 0.0, 11.0, 1.0]
    assert one.seen == [[50, 30, 20]]
    assert one.histories == [[6, 7]]
    assert two.seen == [[30]]
    assert two.histories == [[4, 5]]


def test_a_processor_of_all_rows_works_in_place():
    table, one = ProcessorTable(8, resolve_device("cpu")), Adder(1.0)
    table.add([one], [1, 2])
    logits = torch.zeros(2, 3)
    table.apply(logits, batch(2, 1))
    assert logits.tolist() == [[1.0] * 3] * 2


def test_released_slots_are_not_served_and_idle_processors_forgotten():
    table, one = ProcessorTable(8, resolve_device("cpu")), Adder(1.0)
    table.add([one], [1, 2])
    table.release([1])
    table.apply(torch.zeros(2, 3), batch(1, 2))
    assert one.seen == [[20]]
    table.release(np.array([2], np.int32))
    table.apply(torch.zeros(2, 3), batch(1, 2))
    assert len(one.seen) == 1
    assert not table._members
