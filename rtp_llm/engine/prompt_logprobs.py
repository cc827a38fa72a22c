"""Log-probabilities of prompt tokens, for the few requests that ask for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm import ops
from rtp_llm.engine.messages import INDEX_BITS, PromptLogprobs

if TYPE_CHECKING:
    from rtp_llm._runtime import Batch
    from rtp_llm.device import Download
    from rtp_llm.worker.model_runner import ModelRunner

# Logits of a whole prompt would be prompt x vocabulary numbers; a slice keeps them to some MiB.
_SLICE = 64
# Alternatives of a slice: who reads its message has an event loop that must not stand still.
_SLICE_ENTRIES = 2**15


@dataclass
class _Wish:
    prompt: NDArray[np.int32]
    width: int
    sequences: set[int]  # that live; one of them, whichever, computes the prompt
    scored: bool = False  # to its end; its last parts may still be on their way


@dataclass(frozen=True)
class PromptPart:
    """Log-probabilities of some tokens of a prompt on their way to the host."""

    request_id: int
    wish: _Wish
    start: int
    ids: NDArray[np.int32]
    width: int
    scores: Download

    def read(self) -> PromptLogprobs | None:
        """The message, once; None when the model produced NaN or infinity. Waits for the device."""
        chosen, values, top_ids, highest, ranks = self.scores.read()
        if not np.isfinite(highest).all():
            return None
        return PromptLogprobs(
            request_id=self.request_id,
            start=self.start,
            token_ids=self.ids.tobytes(),
            chosen=chosen.tobytes(),
            top_ids=top_ids.tobytes(),
            top_values=values.tobytes(),
            ranks=ranks.tobytes(),
            width=self.width,
        )


class PromptScorer:
    """Scores the prompt tokens that pass through a step, chunk by chunk.

    Token p's distribution is the hidden state of token p - 1, so a chunk of tokens a to b gives
    those of tokens a + 1 to b + 1, the one after the prompt left out. A prompt that is computed
    again after a preemption gives the same parts again; the reader stores them by position.
    """

    def __init__(self, runner: ModelRunner, vocab_size: int) -> None:
        self._runner = runner
        self._vocab_size = vocab_size
        self._wishes: dict[int, _Wish] = {}

    def add(self, sequence_ids: Sequence[int], prompt: NDArray[np.int32], width: int) -> None:
        """Score the prompt of a request's sequences, ``width`` top values a token; -1: all."""
        width = self._vocab_size if width < 0 else min(max(1, width), self._vocab_size)
        if len(prompt) > 1:
            wish = _Wish(prompt, width, set(sequence_ids))
            self._wishes[sequence_ids[0] >> INDEX_BITS] = wish

    def remove(self, sequence_id: int) -> None:
        """The sequence was aborted; another one of its request goes on with the prompt."""
        request_id = sequence_id >> INDEX_BITS
        wish = self._wishes.get(request_id)
        if wish is not None:
            wish.sequences.discard(sequence_id)
            if not wish.sequences:
                del self._wishes[request_id]

    def launch(self, hidden: Tensor, batch: Batch) -> list[PromptPart]:
        """The parts that this step's hidden states [T, C] give; waits for nothing."""
        return list(self._parts(hidden, batch)) if self._wishes else []

    def _parts(self, hidden: Tensor, batch: Batch) -> Iterator[PromptPart]:
        request_ids = batch.seq_ids >> INDEX_BITS
        for row in np.flatnonzero(np.isin(request_ids, list(self._wishes))).tolist():
            request_id = int(request_ids[row])
            wish = self._wishes[request_id]
            if wish.scored:  # and computed again after a preemption
                continue
            begin, end = batch.cu_seqlens_q[row : row + 2].tolist()
            first = int(batch.positions[begin]) + 1
            last = min(first + end - begin, len(wish.prompt))
            size = max(1, min(_SLICE, _SLICE_ENTRIES // wish.width))
            for start in range(first, last, size):
                stop = min(start + size, last)
                tokens = np.arange(begin + start - first, begin + stop - first, dtype=np.int32)
                yield self._part(hidden, tokens, request_id, start, wish)
            wish.scored = last == len(wish.prompt)

    def _part(
        self, hidden: Tensor, tokens: NDArray[np.int32], request_id: int, start: int, wish: _Wish
    ) -> PromptPart:
        logits = self._runner.logits(hidden, tokens)
        ids = wish.prompt[start : start + len(tokens)]
        device = self._runner.device
        tokens_on_device = device.upload(ids)
        scores = ops.top_logprobs(logits, tokens_on_device, wish.width)
        highest = logits.amax(dim=1)  # of NaN it is NaN
        own = logits.gather(1, tokens_on_device.long()[:, None])
        ranks = (logits >= own).sum(dim=1, dtype=torch.int32)
        download = device.start_download(*scores, highest, ranks)
        return PromptPart(request_id, wish, start, ids, wish.width, download)

    def land(self, parts: Sequence[PromptPart]) -> tuple[list[PromptLogprobs], dict[int, set[int]]]:
        """The messages of a step's parts, but for requests that were aborted meanwhile, and the
        sequences of requests, by their ids, whose prompts gave NaN or infinity; waits."""
        messages: list[PromptLogprobs] = []
        broken: dict[int, set[int]] = {}
        for part in parts:
            if not part.wish.sequences or part.request_id in broken:
                continue
            message = part.read()
            if message is not None:
                messages.append(message)
            else:
                broken[part.request_id] = set(part.wish.sequences)
        for part in parts:
            if part.wish.scored and part.request_id not in broken:  # who aborts those removes them
                self._wishes.pop(part.request_id, None)
        return [each for each in messages if each.request_id not in broken], broken
