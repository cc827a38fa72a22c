# SPDX-License-Identifier: Apache-2.0
"""What one step computes: the declaration of its numbers and arrays.

Each is one field below: its type, its extent, whether the device gets a copy, and which models need
it, if not all do. Made from that:

* the arrays of the C++ batch, their binding and what StepChannel publishes, by way of
  rtp_llm/cpp/scheduler/batch_arrays.inc (``python -m rtp_llm.worker.plan.generate`` writes it);
* the type ``Batch`` in rtp_llm/_runtime.pyi;
* the layout in memory shared with other ranks, and the copies that these make (``layout``);
* what a stage of a pipeline keeps of a step in flight (``HeadPlan.copied``);
* the inputs of steps that run eagerly and of graphs (``DEVICE_ARRAYS`` in ``arrays``).

A new array is one field here, what fills it in the scheduler, and what reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from rtp_llm.worker.plan.extents import (
    GroupCopies,
    GroupStates,
    GroupTable,
    GroupTokens,
    Needs,
    OnDevice,
    OutputStarts,
    PerHistoryToken,
    PerRow,
    PerSequence,
    PerToken,
    PerTokenAxis,
    RowStarts,
    SequenceStarts,
)


@dataclass(frozen=True, eq=False)
class SamplingRows:
    """R rows of logits that each get a token."""

    num_rows: int
    sampling_flags: int
    """The flags of all rows, or-ed."""
    row_ids: PerRow[np.int64]
    """The sequence of each row."""
    row_slots: PerRow[np.int32]
    """The slots that ``Scheduler.add`` returned."""
    row_steps: PerRow[np.int64]
    """Index of the token to sample in its sequence's output."""
    history_cu: RowStarts[np.int32]
    """Where each row's part of ``history_tokens`` begins."""
    history_tokens: PerHistoryToken[np.int32]
    """Prompt and output of the outputs with ``needs_history``, then their drafts.

    Ids are as in ``token_ids``. Row r of an output with the first row f sees
    ``history_tokens[history_cu[f] : history_cu[r + 1]]``.
    """


@dataclass(frozen=True, eq=False)
class HeadPlan(SamplingRows):
    """What heads read of a plan."""

    num_seqs: int
    num_tokens: int
    num_outputs: int
    seq_ids: PerSequence[np.int64]
    """The first sequence's id for n sequences whose prompt is computed together."""
    positions: Annotated[PerToken[np.int32], OnDevice()]
    cu_seqlens_q: Annotated[SequenceStarts[np.int32], OnDevice(padding=None)]
    """Prefix sums of the sequences' token counts."""
    logit_rows: PerRow[np.int32]
    """The token whose hidden state gives the row; repeated for forked sequences."""
    row_cu: OutputStarts[np.int32]
    """Prefix sums of the outputs' row counts: 1 + the number of drafts each."""
    draft_tokens: PerRow[np.int32]
    """If the row samples it, the next row of its output counts. -1: none, or not known."""

    @classmethod
    def copied(cls, plan: HeadPlan) -> HeadPlan:
        """A copy of ``plan`` as it is now: the scheduler's own changes with the next step."""
        values: dict[str, Any] = {}
        for each in fields(HeadPlan):
            value = getattr(plan, each.name)
            values[each.name] = np.array(value) if isinstance(value, np.ndarray) else value
        return HeadPlan(**values)


@dataclass(frozen=True, eq=False)
class StepPlan(HeadPlan):
    """B sequences with T tokens, R rows of logits, O outputs.

    Sequences with one token come first, then those that verify drafts, then chunks of prompts. An
    output is a sequence that gets tokens: from one row, and one more for each of its drafts. Arrays
    per group are in the order of the configuration's groups.

    The scheduler's own plan (``rtp_llm._runtime.Batch``) shows memory that stays in place; what it
    shows changes with the next schedule or commit.
    """

    max_seqlen_q: int
    max_seqlen_k: int
    token_ids: Annotated[PerToken[np.int32], OnDevice()]
    """-(r + 1) stands for the token that row r of the batch in flight samples.

    A draft that the host does not know is 0, with ``device_drafts`` -(max_rows + r + 1): r is its
    row in ``draft_tokens``, and its place here ``logit_rows[r] + 1``.
    """
    seq_lens: Annotated[PerSequence[np.int32], OnDevice()]
    """Length of keys and values once the step has written its own.

    With ``optimistic_drafts`` a sequence whose first token is named by a row of the batch in flight
    counts all drafts before that row. Those that are rejected have to be taken off, by the device,
    here and from ``positions`` and ``row_steps``; ``slot_mapping`` follows from the positions and
    ``block_table``. The token is that of the first row whose draft is rejected.
    """
    mrope_offsets: Annotated[PerTokenAxis[np.int32], OnDevice(), Needs("mrope")]
    """What is added to ``positions`` for the position on each axis: time, height, width.

    They stay right where the device corrects ``positions``.
    """
    adapter_slots: Annotated[PerSequence[np.int32], OnDevice(padding=-1), Needs("adapters")]
    """The adapter that a sequence's tokens pass through; -1: none."""
    second_texts: Annotated[PerSequence[np.int32], OnDevice(), Needs("token_types")]
    """Where the second of two texts begins in a sequence's prompt; 0: it is one text."""
    next_tokens: PerSequence[np.int32]
    """The token after a sequence's last one of the step; -1: it is not known yet."""
    previous_tokens: PerSequence[np.int32]
    """The token before a sequence's first one of the step; 0: there is none.

    Where that one follows drafts of the batch in flight: its own name. It is the token that the
    device computed the first one from.
    """
    slot_mapping: GroupTokens
    """block * block_size + offset."""
    block_table: GroupTable
    """-1 where a sequence has no block; M may exceed what is needed."""
    copy_pairs: GroupCopies
    """Blocks (source, target) to copy before the forward pass.

    No target is a source, and no target occurs twice. Recurrent groups have none: forked sequences
    read one state and write one each.
    """
    state_read: GroupStates
    """The block of the state before a sequence's first token.

    -1: it starts from zeros, whatever ``state_write`` holds.
    """
    state_write: GroupStates
    """The block for the state after a sequence's last token.

    The one that is read, where nobody else reads that; never one that another sequence of the step
    reads or writes.
    """


def rows_are_tokens(logit_rows: NDArray[np.int32], num_tokens: int) -> bool:
    """Whether row r is that of token r, for all of them: no sequence computes its prompt."""
    rows = len(logit_rows)
    return rows == num_tokens and bool((logit_rows == np.arange(rows)).all())
