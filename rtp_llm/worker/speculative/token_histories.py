# SPDX-License-Identifier: Apache-2.0
"""What sequences were asked and said, on the device, where drafts are looked up in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rtp_llm.device import Device
    from rtp_llm.worker.forked_sequences import ForkedSequences

# Tokens of prompts that are uploaded before a step, so that none waits for a long one: 128 KiB.
_CHUNK = 32768
_ALIGNMENT = 4  # tokens: what a kernel reads at once
NO_HISTORY = -1


def history_bytes(num_histories: int, max_model_len: int) -> int:
    """What TokenHistories takes of the device's memory."""
    return 4 * num_histories * (_row_size(max_model_len) + 1)


def _row_size(max_model_len: int) -> int:
    return -(-max_model_len // _ALIGNMENT) * _ALIGNMENT


@dataclass
class _Upload:
    """A prompt on its way into histories; ``done``: tokens that are there."""

    prompt: NDArray[np.int32]
    histories: list[int]
    done: int = 0


class TokenHistories:
    """A history for each sequence that runs: the first ``lens[h]`` of row h of ``tokens``.

    A sequence gets a history when a step first computes a token for it, and keeps it, also while it
    is preempted, until it ends. ``tokens`` is int32 [num_histories, max_model_len], ``lens`` int32
    [num_histories]. The host writes prompts there; what follows them only the device knows.
    """

    def __init__(
        self,
        num_histories: int,
        max_model_len: int,
        num_slots: int,
        device: Device,
        *,
        chunk: int = _CHUNK,
    ) -> None:
        """At most ``chunk`` tokens of prompts are uploaded before a step."""
        place = device.torch_device
        size = num_histories, _row_size(max_model_len)
        self.tokens = torch.zeros(size, dtype=torch.int32, device=place)
        self.lens = torch.zeros(num_histories, dtype=torch.int32, device=place)
        self._device, self._chunk = device, chunk
        self._free = list(range(num_histories))
        self._of_slot = np.full(num_slots, NO_HISTORY, np.int32)
        self._complete = np.zeros(num_histories + 1, np.bool_)  # the last one is NO_HISTORY's
        self._slots: dict[int, int] = {}  # by the ids of sequences
        self._prompts: dict[int, NDArray[np.int32]] = {}  # of slots whose history is to come
        self._uploads: deque[_Upload] = deque()

    @property
    def num_sequences(self) -> int:
        """Those that were added and did not end."""
        return len(self._slots)

    def add(self, ids: Sequence[int], slots: Sequence[int], prompt: NDArray[np.int32]) -> None:
        """Sequences of one prompt, under free slots."""
        self._slots.update(zip(ids, slots, strict=True))
        self._prompts.update(dict.fromkeys(slots, prompt))

    def fork(self, forked: ForkedSequences) -> None:
        """Sequences that continue one with a history."""
        if forked.source in self._slots:
            for each, slot, tokens in zip(forked.ids, forked.slots, forked.histories, strict=True):
                self.add([each], [slot], tokens)

    def append(self, sequence: int, token: int) -> None:
        """Add the first token after a prompt that no step computes here, before a step begins.
        Unknown sequences are ignored."""
        slot = self._slots.get(sequence)
        if slot is not None:
            self._prompts[slot] = np.append(self._prompts[slot], np.int32(token))

    def end(self, ids: Iterable[int]) -> None:
        """Sequences that no later step computes; unknown ones are ignored."""
        for each in ids:
            if (slot := self._slots.pop(each, None)) is None:
                continue
            self._prompts.pop(slot, None)
            if (history := int(self._of_slot[slot])) != NO_HISTORY:
                self._of_slot[slot] = NO_HISTORY
                self._give_back(history)

    def of_step(self, slots: NDArray[np.int32]) -> NDArray[np.int32]:
        """The histories int32 [O] of the sequences in a step, by their slots [O].

        NO_HISTORY: of one that was not added, or that found no free one when it began. Uploads a
        part of the prompts that are not there yet.
        """
        histories = self._of_slot[slots]
        if self._prompts:
            self._begin(slots[histories == NO_HISTORY].tolist())
            histories = self._of_slot[slots]
        if self._uploads:
            self._upload()
        return histories

    def complete(self, histories: NDArray[np.int32]) -> NDArray[np.int32]:
        """The same, NO_HISTORY where a part of the prompt is missing still."""
        if not self._uploads:
            return histories
        return np.where(self._complete[histories], histories, np.int32(NO_HISTORY))

    def _begin(self, slots: Iterable[int]) -> None:
        """Give them histories, as long as there are free ones."""
        uploads: dict[int, _Upload] = {}  # sequences of one request have one prompt
        for slot in slots:
            prompt = self._prompts.pop(slot, None)
            if prompt is None or not self._free:
                continue
            history = self._free.pop()
            self._of_slot[slot] = history
            self.lens[history] = len(prompt)
            uploads.setdefault(id(prompt), _Upload(prompt, [])).histories.append(history)
        self._uploads.extend(uploads.values())

    def _give_back(self, history: int) -> None:
        self._free.append(history)
        if not self._complete[history]:
            for upload in self._uploads:
                if history in upload.histories:
                    upload.histories.remove(history)
        self._complete[history] = False

    def _upload(self) -> None:
        """The next chunk, in the order in which sequences began."""
        left = self._chunk
        while self._uploads and left:
            upload = self._uploads[0]
            begin, prompt = upload.done, upload.prompt
            upload.done = end = min(len(prompt), begin + left)
            if upload.histories:
                left -= end - begin
                part = self._device.upload(prompt[begin:end])
                for history in upload.histories:
                    self.tokens[history, begin:end].copy_(part)
            if end == len(prompt) or not upload.histories:
                self._complete[upload.histories] = True
                self._uploads.popleft()
