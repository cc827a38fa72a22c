"""Log-probabilities of prompt tokens, for the few requests that ask for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm import ops
from rtp_llm.engine.messages import INDEX_BITS, PromptLogprobs

if TYPE_CHECKING:
    from rtp_llm._runtime import Batch
    from rtp_llm.executor.model_runner import ModelRunner

# Logits of a whole prompt would be prompt x vocabulary numbers; a slice keeps them to some MiB.
_SLICE = 64


@dataclass(frozen=True)
class _Wish:
    prompt: NDArray[np.int32]
    width: int


class PromptScorer:
    """Scores the prompt tokens that pass through a step, chunk by chunk.

    Token p's distribution is the hidden state of token p - 1, so a chunk of tokens a to b gives
    those of tokens a + 1 to b + 1, the one after the prompt left out. A prompt that is computed
    again after a preemption gives the same parts again; the reader stores them by position.
    """

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._wishes: dict[int, _Wish] = {}

    def add(self, sequence_id: int, prompt: NDArray[np.int32], width: int) -> None:
        """Score the prompt of ``sequence_id``, ``width`` top values for each token."""
        if len(prompt) > 1:
            self._wishes[sequence_id] = _Wish(prompt, width)

    def remove(self, sequence_id: int) -> None:
        """The sequence was aborted."""
        self._wishes.pop(sequence_id, None)

    def score(self, hidden: Tensor, batch: Batch) -> Iterator[PromptLogprobs]:
        """The parts that this step's hidden states [T, C] give."""
        if not self._wishes:
            return
        rows = np.flatnonzero(np.isin(batch.seq_ids, list(self._wishes)))
        for row in rows.tolist():
            sequence_id = int(batch.seq_ids[row])
            wish = self._wishes[sequence_id]
            begin, end = batch.cu_seqlens_q[row : row + 2].tolist()
            first = int(batch.positions[begin]) + 1
            last = min(first + end - begin, len(wish.prompt))
            for start in range(first, last, _SLICE):
                stop = min(start + _SLICE, last)
                tokens = np.arange(begin + start - first, begin + stop - first, dtype=np.int32)
                yield self._part(hidden, tokens, sequence_id, start, wish)
            if last == len(wish.prompt):
                del self._wishes[sequence_id]

    def _part(
        self, hidden: Tensor, tokens: NDArray[np.int32], sequence_id: int, start: int, wish: _Wish
    ) -> PromptLogprobs:
        logits = self._runner.logits(hidden, tokens)
        ids = wish.prompt[start : start + len(tokens)]
        width = min(max(1, wish.width), logits.shape[1])
        device = self._runner.device
        scores = ops.top_logprobs(logits, device.upload(ids), width)
        chosen, values, top_ids = device.download(*scores)
        return PromptLogprobs(
            request_id=sequence_id >> INDEX_BITS,
            start=start,
            token_ids=ids.tobytes(),
            chosen=chosen.tobytes(),
            top_ids=top_ids.tobytes(),
            top_values=values.tobytes(),
            width=width,
        )
