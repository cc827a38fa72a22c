# SPDX-License-Identifier: Apache-2.0
"""Tests of graphs of steps, with a device whose graphs call the model again."""

from __future__ import annotations

import io
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rtp_llm.device.cpu import CpuDevice
from rtp_llm.terminal.terminal_bar import TerminalBar
from rtp_llm.worker.graphs import step_graphs
from rtp_llm.worker.graphs.capture_session import CaptureError, CaptureSession
from rtp_llm.worker.graphs.step_graphs import StepGraphs
from rtp_llm.worker.inputs.graph_inputs import GraphInputs
from rtp_llm.worker.inputs.graph_sizes import (
    GraphSize,
    decode_sizes,
    encoder_sizes,
    graph_sizes,
)

BLOCK = 4
LONGEST = 9  # tokens of a sequence
SMALL = 10**9  # bytes of weights


class Model:
    """Hidden states that tell what the batch was; what it wrote and read is kept."""

    def __init__(self):
        self.calls = []
        self.room = 1000  # calls before memory runs out

    def __call__(self, batch):
        if len(self.calls) == self.room:
            raise torch.OutOfMemoryError("no memory for this graph")
        hidden = torch.zeros(len(batch.token_ids), 3)
        # A copy: the inputs change with every replay.
        slots = [each.clone() for each in batch.slot_mapping[:1]]
        seen = (*slots, batch.seq_lens.clone(), batch.cu_seqlens_q.clone())
        self.calls.append((batch, hidden, seen))
        self.compute(batch, hidden)
        return hidden

    @staticmethod
    def compute(batch, hidden):
        """Token, position, and the sum of the sequence's blocks."""
        hidden[:] = -1
        sums = sum(table.clamp(min=0).sum(1) for table in batch.block_table)
        if not batch.block_table:
            sums = torch.zeros(len(batch.seq_lens))
        bounds = batch.cu_seqlens_q.tolist()
        for row in range(len(batch.seq_lens)):
            part = slice(bounds[row], bounds[row + 1])
            hidden[part, 0] = batch.token_ids[part].float()
            hidden[part, 1] = batch.positions[part].float()
            hidden[part, 2] = float(sums[row])


class Graph:
    """Remembers the call that was made during its capture, and makes it again."""

    def __init__(self, model, pool):
        self._model = model
        self.pool = pool or object()

    @contextmanager
    def capture(self, stream=None):
        yield
        self._call = self._model.calls[-1][:2]

    def replay(self):
        self._model.compute(*self._call)


class Device(CpuDevice):
    def __init__(self, model):
        super().__init__()
        self._model = model
        self.pools = []

    def new_graph(self, pool=None):
        self.pools.append(pool)
        return Graph(self._model, pool)

    def use_stream(self, stream):
        return nullcontext()


def batch_of(lengths, groups=1, width=2):
    """Sequence i has lengths[i] new tokens, numbered through, and blocks group + 1."""
    total = sum(lengths)
    numbers = np.arange(total, dtype=np.int32)
    return SimpleNamespace(
        num_seqs=len(lengths),
        num_tokens=total,
        max_seqlen_q=max(lengths),
        max_seqlen_k=LONGEST,
        token_ids=numbers + 10,
        positions=numbers + 5,
        seq_lens=np.array(lengths, np.int32) + 5,
        cu_seqlens_q=np.cumsum([0, *lengths], dtype=np.int32),
        slot_mapping=tuple(numbers + 100 * group for group in range(groups)),
        block_table=tuple(
            np.full((len(lengths), width), group + 1, np.int32) for group in range(groups)
        ),
    )


def inputs_on(device, groups=1):
    cache = SimpleNamespace(
        groups=(None,) * groups, layers=(), layer_group=(), recurrent=(), states=()
    )
    most = GraphSize(1024, 64, 1024)
    return GraphInputs(cache, device, most, max_model_len=LONGEST, block_size=BLOCK)


def made(sizes, groups=1, capture=True, bar=None):
    model = Model()
    device = Device(model)
    graphs = StepGraphs(model, inputs_on(device, groups), device, sizes, bar)
    while capture and not graphs.complete:
        graphs.capture_next()
    return graphs, model, device


def replay(graphs, batch):
    captured = graphs.begin(batch)
    return None if captured is None else captured.replay(batch.num_tokens)


def rows(lengths, groups=1):
    blocks = 2 * sum(range(1, groups + 1))
    return [[10 + token, 5 + token, blocks] for token in range(sum(lengths))]


def inputs_of(model, size):
    return next(
        batch
        for batch, *_ in model.calls
        if (len(batch.token_ids), len(batch.seq_lens), batch.max_seqlen_q)
        == (size.tokens, size.sequences, size.longest)
    )


def test_a_capture_touches_no_cache():
    graphs, model, _ = made(decode_sizes(4), capture=False)
    graphs.capture_next()
    replay(graphs, batch_of([1, 1, 1]))  # captures on demand, after numbers have been written
    for _, _, (slots, seq_lens, cu_seqlens_q) in model.calls:
        assert (slots == -1).all()
        assert not seq_lens.any()
        assert not cu_seqlens_q.any()


def test_graphs_share_one_memory():
    _, _, device = made(decode_sizes(8))
    assert device.pools[0] is None
    assert len({id(pool) for pool in device.pools[1:]}) == 1


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_a_batch_runs_in_the_smallest_size_that_holds_it(count, groups):
    graphs, model, _ = made(decode_sizes(8), groups)
    assert replay(graphs, batch_of([1] * count, groups)).tolist() == rows([1] * count, groups)
    size = next(size for size in decode_sizes(8) if size.tokens >= count)
    inputs, left = inputs_of(model, size), size.tokens - count
    assert inputs.cu_seqlens_q.tolist() == [*range(count + 1), *[count] * left]
    assert inputs.seq_lens[count:].tolist() == [0] * left
    assert inputs.slot_mapping[0][count:].tolist() == [-1] * left


@pytest.mark.parametrize(
    ("lengths", "size"),
    [
        ([7], GraphSize(16, 4, 16)),
        ([16], GraphSize(16, 4, 16)),
        ([3, 1, 9], GraphSize(16, 4, 16)),
        ([17], GraphSize(32, 4, 32)),
        ([1] * 8 + [20], GraphSize(32, 32, 32)),
    ],
)
def test_short_prompts_run_padded_and_the_padding_belongs_to_no_sequence(lengths, size):
    graphs, model, _ = made(graph_sizes(8192, 64, SMALL))
    assert replay(graphs, batch_of(lengths)).tolist() == rows(lengths)
    inputs, total = inputs_of(model, size), sum(lengths)
    bounds = inputs.cu_seqlens_q.tolist()
    assert bounds[: len(lengths) + 1] == np.cumsum([0, *lengths]).tolist()
    assert set(bounds[len(lengths) :]) == {total}, "the tail is the query's total"
    assert inputs.seq_lens[len(lengths) :].tolist() == [0] * (size.sequences - len(lengths))
    assert inputs.slot_mapping[0][total:].tolist() == [-1] * (size.tokens - total)
    assert inputs.token_ids[total:].tolist() == [0] * (size.tokens - total)


@pytest.mark.parametrize(
    ("lengths", "size"),
    [
        ([4], GraphSize(4, 1, 4)),
        ([2], GraphSize(4, 1, 4)),
        ([4, 4], GraphSize(8, 2, 4)),
        ([2, 2, 2], GraphSize(16, 4, 4)),  # each of them shorter than captured
        ([4, 2, 4], GraphSize(16, 4, 4)),  # one of them, and not the last
        ([1, 1, 4], GraphSize(16, 4, 4)),  # two without drafts
        ([4] * 16, GraphSize(64, 16, 4)),
        ([1] * 12 + [4] * 4, GraphSize(32, 32, 32)),  # too few for the size of 16 sequences
        ([5, 4], GraphSize(16, 4, 16)),  # more than drafts: a prompt
    ],
)
def test_drafts_are_verified_in_sizes_by_batch_and_tokens_of_a_sequence(lengths, size):
    graphs, model, _ = made(graph_sizes(8192, 64, SMALL, max_draft_tokens=3))
    assert replay(graphs, batch_of(lengths)).tolist() == rows(lengths)
    inputs, total = inputs_of(model, size), sum(lengths)
    bounds = np.cumsum([0, *lengths]).tolist()
    assert inputs.cu_seqlens_q.tolist() == bounds + [total] * (size.sequences - len(lengths))
    assert inputs.seq_lens[len(lengths) :].tolist() == [0] * (size.sequences - len(lengths))
    assert inputs.slot_mapping[0].tolist() == [*range(total), *[-1] * (size.tokens - total)]


@pytest.mark.parametrize(
    ("lengths", "size"),
    [
        ([1], GraphSize(16, 4, 9)),
        ([9, 7], GraphSize(16, 4, 9)),
        ([9, 1, 1, 1, 1], GraphSize(16, 16, 9)),  # too many for the size of four sequences
        ([9] * 4, GraphSize(64, 4, 9)),
        ([2] * 64, GraphSize(128, 64, 9)),
        ([1] * 65, None),  # too many sequences
        ([9] * 8, GraphSize(128, 64, 9)),
        ([10], None),  # a prompt longer than captured ones
        ([9] * 57, None),  # too many tokens
    ],
)
def test_whole_prompts_of_encoders_run_in_sizes_by_tokens(lengths, size):
    """No prefix, no cache, no decode step; what is padded belongs to no sequence."""
    sizes = encoder_sizes(512, 64, SMALL, max_model_len=LONGEST, max_work=4e12)
    graphs, model, _ = made(sizes, groups=0)
    batch = batch_of(lengths, groups=0)
    batch.max_seqlen_k, batch.seq_lens = max(lengths), np.array(lengths, np.int32)
    replayed = replay(graphs, batch)
    if size is None:
        assert replayed is None
        return
    assert replayed[:, :2].tolist() == [[10 + t, 5 + t] for t in range(sum(lengths))]
    inputs, total = inputs_of(model, size), sum(lengths)
    padding = size.sequences - len(lengths)
    bounds = np.cumsum([0, *lengths]).tolist()
    assert inputs.cu_seqlens_q.tolist() == bounds + [total] * padding
    assert inputs.seq_lens.tolist() == lengths + [0] * padding
    assert inputs.token_ids[total:].tolist() == [0] * (size.tokens - total)
    assert inputs.slot_mapping == inputs.block_table == ()


def test_tables_name_blocks_that_exist_behind_the_last_one():
    graphs, model, _ = made(decode_sizes(4))
    table = inputs_of(model, GraphSize(4, 4, 1)).block_table[0]
    assert not table.any(), "before the first batch: the padding block"
    batch = batch_of([1, 1, 1], width=3)
    batch.seq_lens[:] = 9, 4, 1
    # With a window, blocks before it are gone; a spare block may follow the last one in use.
    batch.block_table[0][:] = [[-1, 7, 8], [5, -1, -1], [6, 3, -1]]
    given = batch.block_table[0].copy()
    replay(graphs, batch)
    assert table.tolist() == [[-1, 7, 8], [5, 5, 5], [6, 6, 6], [0, 0, 0]]
    assert (batch.block_table[0] == given).all(), "the runtime's own is as it was"


def test_a_sequence_longer_than_captured_ones_runs_eagerly():
    graphs, _, _ = made(decode_sizes(4))
    batch = batch_of([1, 1])
    batch.max_seqlen_k = LONGEST + 1
    assert replay(graphs, batch) is None


def test_what_were_mostly_padding_runs_eagerly():
    sizes = [GraphSize(16, 4, 16), GraphSize(256, 4, 256), GraphSize(64, 64, 1)]
    graphs, _, _ = made(sizes)
    assert replay(graphs, batch_of([127])) is None
    assert replay(graphs, batch_of([128])) is not None
    # Few tokens cost what 16 cost, and decode steps read the same weights in any size.
    assert replay(graphs, batch_of([2])) is not None
    assert replay(graphs, batch_of([1] * 5)) is not None


def test_a_smaller_batch_after_a_larger_one_leaves_no_trace():
    graphs, model, _ = made(decode_sizes(8))
    replay(graphs, batch_of([1] * 8))
    assert replay(graphs, batch_of([1] * 5)).tolist() == rows([1] * 5)
    inputs = inputs_of(model, GraphSize(8, 8, 1))
    assert inputs.slot_mapping[0].tolist() == [0, 1, 2, 3, 4, -1, -1, -1]


def test_a_table_may_be_wider_than_the_longest_sequence():
    graphs, _, _ = made(decode_sizes(2))
    assert replay(graphs, batch_of([1, 1], width=7)).tolist() == [[10, 5, 3], [11, 6, 3]]


def test_what_no_size_holds_runs_eagerly():
    graphs, _, _ = made(decode_sizes(4))
    assert replay(graphs, batch_of([1] * 4)) is not None
    assert replay(graphs, batch_of([1] * 5)) is None
    assert replay(graphs, batch_of([2, 1])) is None


def test_a_batch_has_its_size_captured_and_then_none_waits_for_a_while():
    graphs, model, _ = made(graph_sizes(8192, 32, SMALL), capture=False)
    graphs.capture_next()  # 32 sequences
    assert replay(graphs, batch_of([1])).tolist() == rows([1])
    captured = len(model.calls)
    assert len(model.calls[-1][0].token_ids) == 1
    # Two sequences: the largest stands in until the pause is over, then their size is captured.
    for _ in range(step_graphs._PAUSE - 1):
        assert replay(graphs, batch_of([1, 1])).tolist() == rows([1, 1])
        assert len(model.calls) == captured
    replay(graphs, batch_of([1, 1]))
    assert len(model.calls[-1][0].token_ids) == 2
    # A prompt that nothing holds runs eagerly meanwhile.
    assert replay(graphs, batch_of([400])) is None


def test_nothing_is_captured_twice():
    graphs, model, _ = made(decode_sizes(4), capture=False)
    replay(graphs, batch_of([1, 1]))
    while not graphs.complete:
        graphs.capture_next()
    graphs.capture_next()
    assert len(model.calls) == 3 * len(decode_sizes(4))


def test_without_memory_for_more_the_engine_goes_on_with_what_it_has(caplog):
    graphs, model, _ = made(graph_sizes(8192, 4, SMALL), capture=False)
    graphs.capture_next()
    model.room = len(model.calls) + 1
    graphs.capture_next()
    assert graphs.complete
    assert "no more graphs are captured, memory is short: no memory" in caplog.text
    assert replay(graphs, batch_of([1])).tolist() == rows([1])
    assert replay(graphs, batch_of([9])) is None


def test_ranks_that_capture_together_keep_a_graph_or_none_does(caplog):
    """Here this rank's capture goes well, and another one's does not; then the other way round."""

    class Others:
        size, reason = 2, "RuntimeError()"

        def wait_for_all(self, seconds=None):
            pass

        def gather(self, value):
            return [value, (value[0], self.reason)]

    others, model = Others(), Model()
    device = Device(model)
    sizes = [GraphSize(2, 2, 1), GraphSize(4, 4, 1), GraphSize(8, 8, 1)]
    session = CaptureSession(others)
    graphs = StepGraphs(model, inputs_on(device), device, sizes, session=session)
    with pytest.raises(CaptureError, match=r"rank 1: RuntimeError\(\)"):
        graphs.capture_next()
    others.reason = None
    assert replay(graphs, batch_of([1, 1])).tolist() == rows([1, 1])
    assert len(model.calls[-1][0].token_ids) == 4, "the size is not tried again"
    model.room = len(model.calls)
    graphs.capture_next()
    assert "memory is short: no rank keeps a graph: rank 0: OutOfMemoryError" in caplog.text
    assert graphs.complete, "no size is left to try"


def test_the_log_says_what_was_captured(caplog):
    caplog.set_level("INFO")
    made(decode_sizes(8))
    assert "4 graphs for up to 8 tokens of 8 sequences: " in caplog.text
    assert caplog.text.rstrip().endswith(" MiB")


def test_a_terminal_shows_how_far_it_is_and_is_left_empty():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    made(decode_sizes(8), bar=TerminalBar(terminal))
    assert "capturing graphs [############............] 2 of 4" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")
