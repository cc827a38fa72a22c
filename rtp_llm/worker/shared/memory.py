"""The memory through which an engine and its worker processes hand steps over."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

import numpy as np

from rtp_llm.native import load_runtime

if TYPE_CHECKING:
    from rtp_llm._runtime import StepChannel

_ALIGNMENT = 64
_ANSWER_NUMBERS = 4


class StepMemory:
    """A step channel, and beside it the answers to the last two steps.

    ``answers`` int32 [2, 4]: number of tokens, broken rows, whether more comes through the pipe;
    ``tokens`` int32 [2, max_rows]. Both by the last bit of the step's number, so that a step may be
    answered before the one in front of it is read. ``messages`` int64 [1]: how many messages were
    sent to each worker so far.
    """

    def __init__(self, descriptor: int, max_rows: int, num_workers: int, spin: int) -> None:
        """``spin``: microseconds to look at a counter before sleeping."""
        channel: type[StepChannel] = load_runtime().StepChannel
        begin = -(-channel.bytes // _ALIGNMENT) * _ALIGNMENT
        end = begin + 8 + 4 * 2 * (_ANSWER_NUMBERS + max_rows)
        if os.fstat(descriptor).st_size < end:
            os.ftruncate(descriptor, end)
        memory = mmap.mmap(descriptor, end)
        self.descriptor = descriptor
        self.channel = channel(memory, num_workers, spin)
        self.messages = np.frombuffer(memory, np.int64, 1, begin)
        numbers = np.frombuffer(memory, np.int32, 2 * (_ANSWER_NUMBERS + max_rows), begin + 8)
        self.answers = numbers[: 2 * _ANSWER_NUMBERS].reshape(2, _ANSWER_NUMBERS)
        self.tokens = numbers[2 * _ANSWER_NUMBERS :].reshape(2, max_rows)


def default_spin(num_processes: int) -> int:
    """Microseconds that a waiting process keeps its core; none where cores are short."""
    return 50 if len(os.sched_getaffinity(0)) > num_processes else 0
