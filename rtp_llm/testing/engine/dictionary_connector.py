# SPDX-License-Identifier: Apache-2.0
"""A KV connector that keeps evicted blocks in a dictionary of the host, and loads them again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm.engine.engine import Engine
from rtp_llm.engine.kv_connector import Allocation, EvictedBlocks, KvConnector
from rtp_llm.engine.messages import EngineOutput
from rtp_llm.worker.cache.transfer.block_copies import BlockCopies, words_of
from rtp_llm.worker.cache.transfer.layout import CacheLayout
from rtp_llm.worker.kv_connector import WorkerConnector
from rtp_llm.worker.layer_hooks import LayerHooks
from rtp_llm.worker.local_worker import LocalWorker
from rtp_llm.worker.plan.step_plan import StepPlan
from rtp_llm.worker.ranks.rank_group import RankGroup

# (key of all tokens up to the block's end, cache group)
Key = tuple[bytes, int]
Mode = Literal["whole", "by layer"]


@dataclass(frozen=True)
class Save:
    """Copy blocks (block numbers of group g at index g) to the host under these keys."""

    keys: tuple[list[bytes], ...]
    blocks: tuple[NDArray[np.int64], ...]


@dataclass(frozen=True)
class Load:
    """Copy the blocks of these keys back, per group."""

    number: int
    keys: tuple[list[bytes], ...]
    blocks: tuple[NDArray[np.int64], ...]


@dataclass(frozen=True)
class Cancel:
    """Copy no further layer."""

    number: int


@dataclass(frozen=True)
class Ended:
    """Nothing is written by a load any more; ``failed``: some layers did not arrive."""

    number: int
    failed: bool


@dataclass
class _RankLoad:
    order: Load
    layers: list[int]  # that are still to be copied


class DictionaryRank(WorkerConnector):
    """Has the dictionary of one rank.

    ``by layer``: the layers of the next step wait for their blocks, which are copied only then.
    Otherwise each call of `get_finished` copies one layer.
    """

    def __init__(self, worker: LocalWorker, mode: Mode) -> None:
        runner = worker.runner
        self.mode, self._device, self.cache = mode, runner.device, runner.cache
        self._layers = {
            layer: words_of(runner.cache.layers[layer])
            for layer, group in enumerate(runner.cache.layer_group)
            if group >= 0
        }
        self.content: dict[Key, dict[int, Tensor]] = {}  # [P, words] by layer
        self._loads: dict[int, _RankLoad] = {}
        self._ended: list[Ended] = []
        self.waited = 0  # times that a layer of a step copied its blocks
        self.fails: Callable[[Load], bool] = lambda order: False

    @property
    def poll_seconds(self) -> float | None:
        return 0.001 if self._loads or self._ended else None

    def handle_message(self, message: Save | Load | Cancel) -> None:
        match message:
            case Save():
                self._save(message)
            case Load():
                self._loads[message.number] = _RankLoad(message, list(self._layers))
            case Cancel():
                if self._loads.pop(message.number, None) is not None:
                    self._ended.append(Ended(message.number, failed=True))

    def get_finished(self) -> Iterator[Ended]:
        for number, load in list(self._loads.items()):
            if self.mode == "by layer":
                continue
            if self.fails(load.order) and len(load.layers) < len(self._layers):
                self._end(number, failed=True)
                continue
            self._load_layer(load, load.layers[0])
            if not load.layers:
                self._end(number, failed=False)
        ended, self._ended = self._ended, []
        yield from ended

    def begin_step(self, plan: StepPlan) -> nullcontext[LayerHooks] | None:
        if self.mode != "by layer" or not self._loads:
            return None
        return nullcontext(LayerHooks(wait_for_layer_load=self._wait))

    def _wait(self, layer: int) -> None:
        for number, load in list(self._loads.items()):
            if layer in load.layers:
                self.waited += 1
                self._load_layer(load, layer)
            if not load.layers:
                self._end(number, failed=False)

    def _end(self, number: int, *, failed: bool) -> None:
        del self._loads[number]
        self._ended.append(Ended(number, failed))

    def _save(self, save: Save) -> None:
        with torch.inference_mode():
            for layer, memory in self._layers.items():
                group = self.cache.layer_group[layer]
                blocks = save.blocks[group]
                if not len(blocks):
                    continue
                host = torch.empty((len(memory), len(blocks), memory.shape[2]), dtype=memory.dtype)
                BlockCopies(self._device, blocks, memory[0, 0].nbytes).to_host(memory, host)
                self._device.synchronize()
                for number, key in enumerate(save.keys[group]):
                    self.content.setdefault((key, group), {})[layer] = host[:, number].clone()

    def _load_layer(self, load: _RankLoad, layer: int) -> None:
        load.layers.remove(layer)
        group, order = self.cache.layer_group[layer], load.order
        if not order.keys[group]:
            return
        with torch.inference_mode():
            memory, blocks = self._layers[layer], order.blocks[group]
            host = torch.stack([self.content[key, group][layer] for key in order.keys[group]], 1)
            BlockCopies(self._device, blocks, memory[0, 0].nbytes).to_device(host, memory)


@dataclass
class _Loading:
    allocation: Allocation
    number: int
    alive: bool = True


@dataclass
class Counts:
    saved: int = 0  # blocks
    loaded: int = 0  # tokens
    failed: int = 0  # loads
    cancelled: int = 0
    loads: list[tuple[int, int]] = field(default_factory=list)  # tokens [start, end)


class DictionaryConnector(KvConnector):
    """Knows which blocks the dictionaries of the ranks have."""

    def __init__(self, engine: Engine, worker: LocalWorker, mode: Mode = "whole") -> None:
        self.rank = DictionaryRank(worker, mode)
        worker.connect(self.rank)
        self._group, self._mode = RankGroup(self.rank), mode
        self._layout = CacheLayout(worker.runner.cache)
        self._blocks = engine.kv_blocks
        self._tokens: dict[Key, bytes] = {}
        self._loading: dict[int, _Loading] = {}  # by sequence
        self._last = 0
        self._ending: dict[int, _Loading] = {}  # by number
        self.counts = Counts()
        self.max_tokens = 1 << 30  # of one load
        engine.connect(self)

    # -- what goes -------------------------------------------------------------------------------

    def blocks_evicted(self, evicted: EvictedBlocks) -> None:
        groups = range(len(self.rank.cache.groups))
        chosen = [np.flatnonzero(evicted.groups == group) for group in groups]
        keys = tuple([evicted.keys[row].tobytes() for row in rows] for rows in chosen)
        self._group.send(
            Save(keys, tuple(evicted.blocks[rows].astype(np.int64) for rows in chosen))
        )
        for group, rows in enumerate(chosen):
            for key, row in zip(keys[group], rows, strict=True):
                tokens = evicted.tokens[row].tobytes()
                assert self._tokens.setdefault((key, group), tokens) == tokens, "a hash collision"
                self.counts.saved += 1

    # -- what arrives ----------------------------------------------------------------------------

    def get_num_new_matched_tokens(self, sequence: int, num_computed_tokens: int) -> int:
        keys = [key.tobytes() for key in self._blocks.keys(sequence)]
        size = self._layout.block_size
        first = num_computed_tokens // size
        end = min(len(keys), first + self.max_tokens // size)
        while end > first and not self._has(keys, first, end):
            end -= 1
        return (end - first) * size

    def _has(self, keys: Sequence[bytes], first: int, end: int) -> bool:
        for group in range(len(self.rank.cache.groups)):
            start = first
            if self._layout.is_recurrent(group):
                start = end - 1
            else:
                start = max(first, self._layout.first_needed(group, end * self._layout.block_size))
            if any((key, group) not in self._tokens for key in keys[start:end]):
                return False
        return True

    def update_state_after_alloc(self, allocation: Allocation) -> None:
        sequence, _, computed, end = allocation
        keys = self._blocks.keys(sequence)
        first, last = computed // self._layout.block_size, end // self._layout.block_size
        names = np.arange(last)
        pinned = self._blocks.pin(sequence, first, last)
        parts = [self._layout.held(group, first, each, names) for group, each in enumerate(pinned)]
        of_parts = tuple([keys[at].tobytes() for at in part.positions] for part in parts)
        self._last += 1
        self._group.send(Load(self._last, of_parts, tuple(part.blocks for part in parts)))
        loading = _Loading(allocation, self._last)
        self._ending[loading.number] = loading
        self.counts.loads.append((computed, end))
        if self._mode == "by layer":
            self._blocks.finish_load(sequence, end)
            self.counts.loaded += end - computed
        else:
            self._loading[sequence] = loading

    def request_finished(self, sequences: Sequence[int]) -> None:
        for sequence in sequences:
            if (loading := self._loading.pop(sequence, None)) is not None:
                loading.alive = False
                self.counts.cancelled += 1
                self._group.send(Cancel(loading.number))

    def begin_step(self) -> Sequence[EngineOutput]:
        for news in self._group.get_finished():
            assert isinstance(news, Ended)
            loading = self._ending.pop(news.number)
            sequence, _, computed, end = loading.allocation
            others = (each.allocation.sequence for each in self._ending.values())
            if sequence not in others:  # preempted and admitted again before the step
                self._blocks.unpin(sequence)
            if self._mode == "by layer" or not loading.alive:
                continue
            del self._loading[sequence]
            if news.failed:
                self.counts.failed += 1
                self._blocks.recompute(sequence)
            else:
                self.counts.loaded += end - computed
                self._blocks.finish_load(sequence, end)
        return ()

    @property
    def has_work(self) -> bool:
        return bool(self._ending) and self._mode == "whole"

    @property
    def timeout_ms(self) -> int | None:
        return 1 if self._ending else None
