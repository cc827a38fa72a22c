# SPDX-License-Identifier: Apache-2.0
"""Drives an engine until prompts of offline use have their outputs."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from rtp_llm.engine.deltas import decode_step
from rtp_llm.engine.messages import PromptLogprobs, RequestError, RequestFailed, StepOutput
from rtp_llm.offline.prompt_job import PoolingJob, PromptJob
from rtp_llm.offline.prompts import shorten

if TYPE_CHECKING:
    from rtp_llm.engine.engine import Engine
    from rtp_llm.engine.replicas.rank_engines import RankEngines
    from rtp_llm.terminal.progress_line import ProgressLine
    from rtp_llm.worker.heads.logits_processor import LogitsProcessor

Job: TypeAlias = PromptJob | PoolingJob


class PromptRun:
    """Drives the engine until all jobs have ended; aborts what is left when something raises."""

    def __init__(
        self,
        engine: Engine | RankEngines,
        jobs: Sequence[Job],
        processors: Sequence[LogitsProcessor],
        line: ProgressLine,
    ) -> None:
        self._engine = engine
        self._waiting = deque(jobs)
        self._open: dict[int, Job] = {}
        self._processors = processors
        self._line = line

    def finish_all(self) -> None:
        """Run to the end."""
        try:
            while self._waiting or self._open:
                self._admit()
                for output in self._engine.step():
                    self._take(output)
        except BaseException:
            self._abort_all()
            raise
        finally:
            self._line.clear()

    def _admit(self) -> None:
        """Give the engine as many requests as it takes; the rest wait here."""
        while self._waiting:
            job = self._waiting[0]
            request_id = job.request.request_id
            # First, so that Ctrl-C inside add() aborts it too; the engine ignores unknown ids.
            self._open[request_id] = job
            try:
                self._engine.add(job.request, self._processors)
            except RequestError as error:
                del self._open[request_id]
                if error.kind == "queue_full" and self._open:
                    return
                raise refused(job, error.message) from error
            self._waiting.popleft()

    def _take(self, output: StepOutput | PromptLogprobs | RequestFailed) -> None:
        if isinstance(output, RequestFailed):
            raise refused(self._open.pop(output.request_id), output.message)
        if isinstance(output, PromptLogprobs):
            self._open[output.request_id].take_prompt_logprobs(output)
            return
        stopped = []
        for request_id, delta in decode_step(output):
            job = self._open.get(request_id)  # None: aborted, of which a process hears later
            if job and job.take(delta):
                stopped.append((request_id, delta.index))
            if job and not job.open:
                del self._open[request_id]
                self._line.prompts += 1
        if stopped:
            self._engine.abort(stopped)
        self._line.tokens += output.num_rows
        self._line.draw()

    def _abort_all(self) -> None:
        left = [(key, index) for key, job in self._open.items() for index in job.open]
        if left and self._engine.alive:
            self._engine.abort(left)


def refused(job: Job, reason: str) -> ValueError:
    """The error for a prompt that the engine refuses or gives up."""
    prompt = job.output.prompt
    shown = job.output.prompt_token_ids if prompt is None else prompt
    return ValueError(f"{shorten(shown)}: {reason}")
