"""Tests of recorded decode steps, with a device whose graphs call the model again."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rtp_llm.device.cpu import CpuDevice
from rtp_llm.executor.decode_graphs import DecodeGraphs, graph_sizes

BLOCK = 4


class Model:
    """Hidden states that tell what the batch was; what it wrote and read is kept."""

    def __init__(self):
        self.calls = []

    def __call__(self, batch):
        hidden = torch.zeros(len(batch.token_ids), 3)
        self.calls.append((batch, hidden))
        self.compute(batch, hidden)
        return hidden

    @staticmethod
    def compute(batch, hidden):
        sums = [table.clamp(min=0).sum(1) for table in batch.block_table]
        hidden[:] = torch.stack([batch.token_ids, batch.positions, sum(sums)], 1)


class Graph:
    """Remembers the call that was made while it recorded, and makes it again."""

    pool = object()

    def __init__(self, model):
        self._model = model

    @contextmanager
    def capture(self, stream=None):
        yield
        self._call = self._model.calls[-1]

    def replay(self):
        self._model.compute(*self._call)


class Device(CpuDevice):
    def __init__(self, model):
        super().__init__()
        self._model = model

    def new_graph(self, pool=None):
        return Graph(self._model)

    def use_stream(self, stream):
        return nullcontext()


def decode_batch(count, groups=1, width=2):
    numbers = np.arange(count, dtype=np.int32)
    return SimpleNamespace(
        num_seqs=count,
        num_tokens=count,
        token_ids=numbers + 10,
        positions=numbers + 5,
        seq_lens=numbers + 6,
        cu_seqlens_q=np.arange(count + 1, dtype=np.int32),
        slot_mapping=tuple(numbers + 100 * group for group in range(groups)),
        block_table=tuple(np.full((count, width), group + 1, np.int32) for group in range(groups)),
    )


def recorded(most, groups=1):
    model = Model()
    cache = SimpleNamespace(groups=(None,) * groups, layers=(), layer_group=())
    graphs = DecodeGraphs(model, cache, Device(model), most, max_model_len=9, block_size=BLOCK)
    graphs.record()
    return graphs, model


def test_sizes_end_with_the_largest():
    assert graph_sizes(1) == [1]
    assert graph_sizes(20) == [1, 2, 4, 8, 16, 20]
    assert graph_sizes(64) == [1, 2, 4, 8, 16, 24, 32, 48, 64]
    assert graph_sizes(256)[-3:] == [224, 240, 256]


def test_recording_touches_no_cache():
    _, model = recorded(4)
    for batch, _ in model.calls:
        assert (batch.slot_mapping[0] == -1).all()
        assert not batch.seq_lens.any()
        assert not batch.cu_seqlens_q.any()


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_a_batch_runs_in_the_smallest_size_that_holds_it(count, groups):
    graphs, model = recorded(8, groups)
    batch = decode_batch(count, groups)
    hidden = graphs.replay(batch)
    blocks = 2 * sum(range(1, groups + 1))
    expected = [[10 + row, 5 + row, blocks] for row in range(count)]
    assert hidden.tolist() == expected
    size = next(size for size in graph_sizes(8) if size >= count)
    inputs = next(inputs for inputs, _ in model.calls if len(inputs.token_ids) == size)
    assert inputs.cu_seqlens_q.tolist() == [*range(count + 1), *[count] * (size - count)]
    assert inputs.seq_lens[count:].tolist() == [0] * (size - count)
    assert inputs.slot_mapping[0][count:].tolist() == [-1] * (size - count)


def test_a_smaller_batch_after_a_larger_one_leaves_no_trace():
    graphs, model = recorded(8)
    graphs.replay(decode_batch(8))
    assert graphs.replay(decode_batch(5)).tolist() == [[10 + row, 5 + row, 2] for row in range(5)]
    inputs = next(inputs for inputs, _ in model.calls if len(inputs.token_ids) == 8)
    assert inputs.slot_mapping[0].tolist() == [0, 1, 2, 3, 4, -1, -1, -1]


def test_a_table_may_be_wider_than_the_longest_sequence():
    graphs, _ = recorded(2)
    assert graphs.replay(decode_batch(2, width=7)).tolist() == [[10, 5, 3], [11, 6, 3]]


def test_prompts_and_large_batches_run_eagerly():
    graphs, _ = recorded(4)
    assert graphs.takes(decode_batch(4))
    assert not graphs.takes(decode_batch(5))
    prompt = decode_batch(2)
    prompt.num_tokens = 7
    assert not graphs.takes(prompt)
