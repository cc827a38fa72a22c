# SPDX-License-Identifier: Apache-2.0
"""Which blocks of a step are for other workers, and the cycle that takes them to the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from rtp_llm.worker.cache.transfer.cache_keys import chain_keys
from rtp_llm.worker.cache.transfer.interfaces import SendBuffer
from rtp_llm.worker.cache.transfer.write_cycles import Cycle, WriteCycles
from rtp_llm.worker.cache.transfer.write_op import CacheStoreInputs, WriteCacheStoreOp
from rtp_llm.worker.layer_hooks import LayerHooks

if TYPE_CHECKING:
    from rtp_llm.device import Device, Download
    from rtp_llm.engine.kv_blocks import KvBlocks
    from rtp_llm.worker.cache.transfer.layout import CacheLayout
    from rtp_llm.worker.cache.transfer.writer_settings import WriterSettings
    from rtp_llm.worker.plan.step_plan import StepPlan
    from rtp_llm.worker.speculative.device_drafter import DeviceDrafter


class PinningSendBuffer(SendBuffer, Protocol):
    """A send buffer that says whether the store reads the cache itself, so that it stays pinned."""

    keeps_blocks: bool


@dataclass
class SentPrompt:
    """A prompt that is computed for another worker; ``stored`` blocks of it are in the store."""

    name: int
    length: int
    keys: NDArray[np.int64]
    stored: int = 0


class SentStates:
    """States from which drafts of a step's prompts continue, being downloaded: uint8 [prompts,
    bytes]."""

    def __init__(self, download: Download) -> None:
        self._download = download

    @cached_property
    def rows(self) -> NDArray[np.uint8]:
        """The states; waits for the device if necessary."""
        rows: NDArray[np.uint8] = self._download.read()[0]
        return rows


class SentStep(AbstractContextManager[LayerHooks]):
    """Runs around the layers of a step, and again around those that draft."""

    def __init__(self, begin: Callable[[], Callable[[int], None]], cycles: WriteCycles) -> None:
        self._begin, self._cycles = begin, cycles

    @cached_property
    def _write(self) -> Callable[[int], None]:
        return self._begin()

    def __enter__(self) -> LayerHooks:
        return LayerHooks(save_kv_layer=self._write)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Wait for all copies when the step fails."""
        if error is not None:
            self._cycles.finish()


class PromptWriter:
    """Opens a cycle of the asynchronous writer for each step with such prompts.

    The forward thread waits for nothing inside the layers, and for copies of a step only when the
    one after the next begins. A failure of a task, or a full queue, is a failure of the step's
    prompts, not of the step: see ``take_failures``.
    """

    def __init__(
        self,
        layout: CacheLayout,
        blocks: KvBlocks | None,
        send_buffer: PinningSendBuffer,
        device: Device,
        settings: WriterSettings,
        *,
        keeps_blocks: bool = False,
    ) -> None:
        """``blocks`` None: on a rank whose rank 0 pins the blocks for all, with ``keeps_blocks``:
        until all have released them."""
        self._layout, self._blocks, self._send_buffer = layout, blocks, send_buffer
        self._keeps_blocks = keeps_blocks
        self._new_event = device.new_event
        self._cycles = WriteCycles(settings, device.make_current, self._end)
        self._prompts: dict[int, SentPrompt] = {}
        self._copying: Counter[int] = Counter()  # cycles of each sequence
        self._failures: dict[int, Exception] = {}
        self._draft_states: dict[int, tuple[SentStates, int]] = {}  # and which row

    def add(self, sequence: int, name: int, tokens: NDArray[np.int32], extra_key: str) -> None:
        """Send blocks of this sequence to the store from now on, under the name."""
        keys = chain_keys(tokens, self._layout.block_size, extra_key)
        self._prompts[sequence] = SentPrompt(name, len(tokens), keys)

    def remove(self, sequence: int) -> None:
        """Send no more blocks of it; what was stored or is being copied is not touched."""
        self._prompts.pop(sequence, None)
        self._draft_states.pop(sequence, None)

    def take_failures(self) -> dict[int, Exception]:
        """Return sequences whose blocks did not all reach the store, and why; each once. Removed
        sequences are included if a copy failed that was in progress."""
        self._cycles.settle()
        failures, self._failures = self._failures, {}
        return failures

    @property
    def in_progress(self) -> bool:
        """Whether `take_failures` must be called again."""
        return self._cycles.in_progress > 0

    def reads(self, sequence: int) -> bool:
        """Whether copies of it are in progress, as far as `take_failures` has seen."""
        return self._copying[sequence] > 0

    @property
    def queued(self) -> int:
        """The number of tasks that no thread has taken yet."""
        return self._cycles.queued

    def finish(self) -> None:
        """Wait for all copies."""
        self._cycles.finish()

    def close(self) -> None:
        """End the writer's threads."""
        self._cycles.close()

    def begin(self, batch: StepPlan) -> AbstractContextManager[LayerHooks] | None:
        """Return the context of a step's layers; None if no prompt of the batch is for others."""
        if not self._prompts:
            return None
        ids = batch.seq_ids.tolist()
        rows = [row for row, sequence in enumerate(ids) if sequence in self._prompts]
        if not rows:
            return None
        sequences, inputs = [ids[row] for row in rows], self._inputs(batch, rows)
        return SentStep(lambda: self._begin_cycle(sequences, inputs), self._cycles)

    def _begin_cycle(self, sequences: list[int], inputs: CacheStoreInputs) -> WriteCacheStoreOp:
        self._copying.update(sequences)  # before an earlier cycle ends, whose blocks they share
        cycle = self._cycles.begin(sequences)
        return WriteCacheStoreOp(
            inputs, self._layout, self._send_buffer, cycle.submit, self._new_event
        )

    def send_drafts(self, batch: StepPlan, drafter: DeviceDrafter) -> None:
        """Start to download what drafts of the prompts that end in this step continue from."""
        ids = batch.row_ids.tolist()
        rows = [row for row in batch.row_cu[:-1].tolist() if ids[row] in self._prompts]
        download = drafter.send_states(batch.row_slots[rows]) if rows else None
        if download is not None:
            states = SentStates(download)
            for number, row in enumerate(rows):
                self._draft_states[ids[row]] = states, number

    def take_draft_state(self, sequence: int) -> bytes:
        """Return the state of a computed prompt, once; see Prefilled."""
        if sequence not in self._draft_states:
            return b""
        states, row = self._draft_states.pop(sequence)
        return bytes(states.rows[row])

    def _end(self, cycle: Cycle) -> None:
        self._copying.subtract(cycle.sequences)
        for sequence in cycle.sequences:
            if not self._copying[sequence]:
                del self._copying[sequence]
                keeps = self._keeps_blocks or self._send_buffer.keeps_blocks
                if self._blocks is not None and not keeps:
                    self._blocks.unpin(sequence)
        if cycle.error is not None:
            self._failures.update(dict.fromkeys(cycle.sequences, cycle.error))

    def _inputs(self, batch: StepPlan, rows: list[int]) -> CacheStoreInputs:
        """Of the rows of the batch: what the step completes, in whole blocks until the prompt ends.

        The blocks are held from now on: they belong to the store as well.
        """
        size = self._layout.block_size
        prompts = [self._prompts[int(batch.seq_ids[row])] for row in rows]
        ends = [int(batch.seq_lens[row]) for row in rows]
        lengths = [
            end if end >= prompt.length else end // size * size
            for end, prompt in zip(ends, prompts, strict=True)
        ]
        stored = [prompt.stored for prompt in prompts]
        for row, prompt, length in zip(rows, prompts, lengths, strict=True):
            blocks = -(-min(length, prompt.length) // size)
            if blocks > prompt.stored:
                if self._blocks is not None:
                    self._blocks.pin(int(batch.seq_ids[row]), prompt.stored, blocks)
                prompt.stored = blocks
        return CacheStoreInputs(
            input_lengths_host=torch.tensor(lengths, dtype=torch.int32),
            prefix_lengths_host=torch.zeros(len(rows), dtype=torch.int32),
            host_kv_cache_offset=self._tables(batch, rows, prompts),
            request_id=torch.tensor([prompt.name for prompt in prompts]),
            request_pd_separation=torch.ones(len(rows), dtype=torch.bool),
            cache_keys=_padded([prompt.keys for prompt in prompts]),
            stored_blocks=torch.tensor(stored, dtype=torch.int32),
        )

    def _tables(
        self, batch: StepPlan, rows: list[int], prompts: list[SentPrompt]
    ) -> tuple[torch.Tensor, ...]:
        """Copies of the block tables' rows, without the blocks that no later token reads."""
        tables = []
        for group, table in enumerate(batch.block_table):
            if self._layout.is_recurrent(group):
                tables.append(_last_states(batch.state_write[group][rows], prompts))
                continue
            picked = table[rows]
            for row, prompt in zip(picked, prompts, strict=True):
                row[: self._layout.first_needed(group, prompt.length)] = -1
            tables.append(torch.from_numpy(picked))
        return tuple(tables)


def _last_states(blocks: NDArray[np.int32], prompts: list[SentPrompt]) -> torch.Tensor:
    """As a table [len(prompts), entries] of the states after a step: each is its prompt's last.

    Rows of prompts that go on are cut off before it, as their lengths are.
    """
    table = np.full((len(prompts), max(len(prompt.keys) for prompt in prompts)), -1, np.int32)
    for row, block, prompt in zip(table, blocks, prompts, strict=True):
        row[len(prompt.keys) - 1] = block
    return torch.from_numpy(table)


def _padded(keys: list[NDArray[np.int64]]) -> torch.Tensor:
    """int64 [len(keys), the longest's length], zeros after the shorter ones' ends."""
    padded = np.zeros((len(keys), max(map(len, keys))), np.int64)
    for row, each in zip(padded, keys, strict=True):
        row[: len(each)] = each
    return torch.from_numpy(padded)
