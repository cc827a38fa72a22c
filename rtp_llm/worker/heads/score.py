# SPDX-License-Identifier: Apache-2.0
"""The head that scores prompts: log-probabilities of prompt tokens, if requested."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm import ops
from rtp_llm.worker.heads.prompt_outputs import PromptScores

if TYPE_CHECKING:
    from rtp_llm.device import Download
    from rtp_llm.worker.model_runner import ModelRunner
    from rtp_llm.worker.new_sequences import NewSequences
    from rtp_llm.worker.plan.step_plan import HeadPlan

# Logits of a whole prompt would be prompt x vocabulary numbers; a slice keeps them to some MiB.
_SLICE = 64
# Alternatives of a slice: its message is read in an event loop, which must not be blocked.
_SLICE_ENTRIES = 2**15


@dataclass
class _Request:
    prompt: NDArray[np.int32]
    width: int
    sequences: set[int]  # that live; one of them, whichever, computes the prompt
    scored: bool = False  # to its end; its last parts may still be on their way


@dataclass(frozen=True)
class ScorePart:
    """Log-probabilities of some tokens of a prompt on their way to the host."""

    sequence: int
    request: _Request
    start: int
    ids: NDArray[np.int32]
    scores: Download

    def read(self) -> PromptScores | None:
        """The scores, once; None when the model produced NaN or infinity. Waits for the device."""
        chosen, values, top_ids, highest, ranks = self.scores.read()
        if not np.isfinite(highest).all():
            return None
        place = self.sequence, self.start
        return PromptScores(*place, self.ids, chosen, values, top_ids, ranks)


class ScoreHead:
    """Scores the prompt tokens that pass through a step, chunk by chunk.

    The distribution of token p comes from the hidden state of token p - 1, so a chunk of tokens a
    to b scores tokens a + 1 to b + 1, except the one after the prompt. A prompt that is recomputed
    after a preemption gives the same parts again; the reader stores them by position.
    """

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._requests: dict[int, _Request] = {}  # by each sequence of a request

    def add(self, sequences: NewSequences) -> None:
        """Score the prompt that the sequences share, if they ask for that."""
        width, prompt = sequences.params.prompt_logprobs, sequences.prompt
        if width is None:
            return
        vocabulary = self._runner.model.config.vocab_size
        width = vocabulary if width < 0 else min(max(1, width), vocabulary)
        if len(prompt) > 1:
            request = _Request(prompt, width, set(sequences.ids))
            self._requests.update(dict.fromkeys(sequences.ids, request))

    def remove(self, sequence: int) -> None:
        """Forget an aborted sequence; another one of its request continues the prompt."""
        request = self._requests.pop(sequence, None)
        if request is not None:
            request.sequences.discard(sequence)

    def submit(self, hidden: Tensor, plan: HeadPlan) -> list[ScorePart]:
        """The parts of prompts that this step's hidden states [T, C] score; never waits."""
        return list(self._parts(hidden, plan)) if self._requests else []

    def _parts(self, hidden: Tensor, plan: HeadPlan) -> Iterator[ScorePart]:
        for row in np.flatnonzero(np.isin(plan.seq_ids, list(self._requests))).tolist():
            sequence = int(plan.seq_ids[row])
            request = self._requests[sequence]
            if request.scored:  # and computed again after a preemption
                continue
            begin, end = plan.cu_seqlens_q[row : row + 2].tolist()
            first = int(plan.positions[begin]) + 1
            last = min(first + end - begin, len(request.prompt))
            size = max(1, min(_SLICE, _SLICE_ENTRIES // request.width))
            for start in range(first, last, size):
                stop = min(start + size, last)
                tokens = np.arange(begin + start - first, begin + stop - first, dtype=np.int32)
                yield self._part(hidden, tokens, sequence, start, request)
            request.scored = last == len(request.prompt)

    def _part(
        self,
        hidden: Tensor,
        tokens: NDArray[np.int32],
        sequence: int,
        start: int,
        request: _Request,
    ) -> ScorePart:
        logits = self._runner.model.gather_logits(self._runner.logits(hidden, tokens))
        ids = request.prompt[start : start + len(tokens)]
        device = self._runner.device
        tokens_on_device = device.upload(ids)
        scores = ops.top_logprobs(logits, tokens_on_device, request.width)
        highest = logits.amax(dim=1)  # of NaN it is NaN
        own = logits.gather(1, tokens_on_device.long()[:, None])
        ranks = (logits >= own).sum(dim=1, dtype=torch.int32)
        download = device.start_download(*scores, highest, ranks)
        return ScorePart(sequence, request, start, ids, download)

    def read(self, parts: Sequence[ScorePart]) -> tuple[list[PromptScores], list[frozenset[int]]]:
        """The scores of a step's parts, except of requests aborted in the meantime, and the
        sequences of each request with NaN or infinity in its scores; waits for the device."""
        found: list[tuple[_Request, PromptScores]] = []
        broken: dict[int, _Request] = {}
        for part in parts:
            request = part.request
            if not request.sequences or id(request) in broken:
                continue
            scores = part.read()
            if scores is not None:
                found.append((request, scores))
            else:
                broken[id(request)] = request
        for part in parts:
            if (
                part.request.scored and id(part.request) not in broken
            ):  # who aborts those removes them
                for sequence in part.request.sequences:
                    self._requests.pop(sequence, None)
        kept = [scores for request, scores in found if id(request) not in broken]
        return kept, [frozenset(request.sequences) for request in broken.values()]
