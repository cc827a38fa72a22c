# SPDX-License-Identifier: Apache-2.0
"""The memory through which one rank's worker passes steps to the others."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

import numpy as np

from rtp_llm.native import load_runtime

if TYPE_CHECKING:
    from rtp_llm._runtime import StepChannel

_ALIGNMENT = 64
_NUMBERS = 3
PLAN, IDLE, SAMPLE, MESSAGES, PART = range(5)


class StepMemory:
    """A step channel, and what ranks need to know of the last published step besides its plan.

    ``numbers`` int64 [3]: how many messages were sent to each rank before it; its kind, which is
    PLAN or, without a step, a request to do idle work (IDLE), to sample the oldest unsampled step
    (SAMPLE), to receive those messages (MESSAGES) or to take part in a step of other engines
    (PART); and the most tokens of any engine that steps with this one, or 0. Written before the
    step is published, and not again before all ranks have taken it.
    """

    def __init__(self, descriptor: int, num_workers: int, spin: int) -> None:
        """``spin``: microseconds to poll a counter before sleeping."""
        channel: type[StepChannel] = load_runtime().StepChannel
        begin = -(-channel.bytes // _ALIGNMENT) * _ALIGNMENT
        end = begin + 8 * _NUMBERS
        if os.fstat(descriptor).st_size < end:
            os.ftruncate(descriptor, end)
        memory = mmap.mmap(descriptor, end)
        self.channel = channel(memory, num_workers, spin)
        self.numbers = np.frombuffer(memory, np.int64, _NUMBERS, begin)


def default_spin(num_processes: int) -> int:
    """Microseconds that a waiting process spins on its core; 0 if cores are scarce."""
    return 50 if len(os.sched_getaffinity(0)) > num_processes else 0
