# SPDX-License-Identifier: Apache-2.0
"""Keeps track of steps that failed or were interrupted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from rtp_llm.engine.messages import EngineDeadError

if TYPE_CHECKING:
    from rtp_llm._runtime import Scheduler


class StepGuard:
    """An exception leaves the scheduler between two states, so it cannot be used any more.

    After KeyboardInterrupt the running sequences can still be aborted: the unfinished steps are
    ``interrupted`` until they are forgotten.
    """

    def __init__(self) -> None:
        self.interrupted = False
        self._failure: str | None = None

    @property
    def alive(self) -> bool:
        """Whether no step has failed."""
        return self._failure is None

    def check(self) -> None:
        """Raise EngineDeadError if a step has failed."""
        if self._failure is not None:
            raise EngineDeadError(self._failure)

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """A context to run a step in; lets exceptions pass."""
        try:
            yield
        except Exception as error:
            self._failure = f"a step failed: {type(error).__name__}: {error}"
            raise
        except KeyboardInterrupt:
            self.interrupted = True
            raise

    def forget_steps(self, scheduler: Scheduler) -> None:
        """Give up interrupted steps: their rows are dead and get no token."""
        for outputs in scheduler.uncommitted:
            scheduler.commit(np.full(outputs, -1, np.int32))
        self.interrupted = False
