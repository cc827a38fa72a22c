# SPDX-License-Identifier: Apache-2.0
"""Steps of an engine's model on plans made by hand: eagerly, and as a graph would run them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.worker.inputs.graph_sizes import GraphSize

_VOCABULARY = 199
Replay = Callable[[Any], Tensor | None]


def replay_with(graphs: Any) -> Replay:
    """Of StepGraphs, or of what stands in for them."""

    def replay(plan: Any) -> Tensor | None:
        captured = graphs.begin(plan)
        return None if captured is None else captured.replay(plan.num_tokens)

    return replay


@dataclass(frozen=True)
class Case:
    """Sequences with `lengths` new tokens after `prefixes`, in a graph that was captured for
    `size`.
    """

    lengths: Sequence[int]
    prefixes: Sequence[int]
    size: GraphSize

    def __str__(self) -> str:
        size = f"{self.size.tokens}-{self.size.sequences}-{self.size.longest}"
        return f"{list(self.lengths)}-after-{list(self.prefixes)}-in-{size}".replace(" ", "")


_PROMPT, _DRAFTS = GraphSize(16, 4, 16), GraphSize(16, 4, 4)
CASES = (
    Case([7], [0], _PROMPT),
    Case([16], [0], _PROMPT),
    Case([9], [23], _PROMPT),
    Case([8], [16], _PROMPT),  # whole blocks
    Case([2, 9, 1], [0, 5, 0], _PROMPT),
    Case([2, 9, 1], [30, 0, 17], _PROMPT),  # the longest prefix and the most tokens apart
    Case([4, 4, 4, 4], [0, 3, 16, 41], _DRAFTS),
    Case([2, 2, 2], [5, 16, 31], _DRAFTS),  # each shorter than captured
    Case([4, 2, 4], [12, 9, 20], _DRAFTS),  # one shorter, and not the last
    Case([1, 4], [33, 2], _DRAFTS),
    Case([4], [28], _DRAFTS),
    Case([1, 1, 1], [40, 3, 15], GraphSize(8, 8, 1)),
)


class StepsByHand:
    """Each sequence has blocks of its own, in any order; all other blocks hold no numbers."""

    def __init__(self, engine: TinyEngine, seed: int = 1) -> None:
        self.runner = engine.built.worker.runner
        self._cache = self.runner.cache
        random = np.random.default_rng(seed)
        self._blocks = [random.permutation(_blocks(memory) - 1) + 1 for memory in self._memory]

    @property
    def _memory(self) -> list[Tensor]:
        return [self._cache.memory[group] for group in range(len(self._cache.groups))]

    def check(self, case: Case, replay: Replay, rtol: float, atol: float) -> None:
        """A replay gives what the eager step gives, and writes the same and nothing else."""
        for memory in self._memory:
            memory.view(torch.uint8).fill_(0xFF)  # not a number, in every type
        continued = [i for i, prefix in enumerate(case.prefixes) if prefix]
        with torch.inference_mode():
            if continued:
                prefixes = [case.prefixes[i] for i in continued]
                self._eager(self.plan(prefixes, [0] * len(continued), continued))
            plan = self.plan(case.lengths, case.prefixes)
            before = [memory.clone() for memory in self._memory]
            eager = self._eager(plan).clone()
            written = [memory.clone() for memory in self._memory]
            self._restore(before)
            replayed = replay(plan)
        assert replayed is not None, "no captured size holds the batch"
        assert not replayed.isnan().any()
        torch.testing.assert_close(replayed, eager, rtol=rtol, atol=atol)
        places = [self._written(plan, group) for group in range(len(before))]
        for group, (old, new) in enumerate(zip(before, self._memory, strict=True)):
            untouched = ~places[group].to(new.device)
            assert torch.equal(_raw(old, untouched), _raw(new, untouched)), "padding was written"
        self._restore_and_compare(written, places, rtol, atol)

    def plan(
        self, lengths: Sequence[int], prefixes: Sequence[int], sequences: Sequence[int] = ()
    ) -> Any:
        """A StepPlan of these `sequences` (none: the first ones), of which nothing is sampled."""
        places = sequences or range(len(lengths))
        ends = np.add(lengths, prefixes).astype(np.int32)
        positions = [np.arange(end - new, end) for end, new in zip(ends, lengths, strict=True)]
        tokens = [_tokens(p, s) for p, s in zip(positions, places, strict=True)]
        tables, slots, read, write = [], [], [], []
        for group, kept in enumerate(self._cache.groups):
            if kept.spec.kind == "recurrent":
                blocks = self._blocks[group][list(places)]
                tables.append(np.empty((0, 0), np.int32))
                slots.append(_int32([]))
                read.append(_int32(np.where(np.equal(prefixes, 0), -1, blocks)))
                write.append(_int32(blocks))
                continue
            table = self._table(group, places, ends, ends - lengths)
            size, rows = self._cache.block_size, enumerate(positions)
            placed = [table[r, p // size] * size + p % size for r, p in rows]
            slots.append(_int32(np.concatenate(placed)))
            tables.append(table)
            read.append(_int32([]))
            write.append(_int32([]))
        return SimpleNamespace(
            num_seqs=len(lengths),
            num_tokens=sum(lengths),
            max_seqlen_q=max(lengths),
            max_seqlen_k=int(ends.max()),
            token_ids=_int32(np.concatenate(tokens)),
            previous_tokens=_tokens(ends - lengths - 1, np.array(places)).astype(np.int32),
            positions=_int32(np.concatenate(positions)),
            cu_seqlens_q=np.cumsum([0, *lengths], dtype=np.int32),
            seq_lens=ends,
            slot_mapping=tuple(slots),
            block_table=tuple(tables),
            state_read=tuple(read),
            state_write=tuple(write),
            copy_pairs=tuple(np.empty((0, 2), np.int32) for _ in tables),
        )

    def _eager(self, plan: Any) -> Tensor:
        return self.runner.forward(self.runner.begin(plan))

    def _table(
        self, group: int, places: Sequence[int], ends: NDArray[np.int32], starts: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """The block table [B, M] with -1 after a sequence's blocks, and before its window."""
        size, window = self._cache.block_size, self._cache.groups[group].spec.window
        most = len(self._blocks[group]) // 8
        table = np.full((len(places), -(-int(ends.max()) // size) + 3), -1, np.int32)
        for row, place in enumerate(places):
            first = max(0, int(starts[row]) - window + 1) // size if window else 0
            last = -(-int(ends[row]) // size)
            own = self._blocks[group][place * most :][:last]
            table[row, first:last] = own[first:]
        return table

    def _written(self, plan: Any, group: int) -> Tensor:
        """bool [N, S], or [N] of states: where the plan's tokens go."""
        memory = self._memory[group]
        if self._cache.groups[group].spec.kind == "recurrent":
            places = torch.zeros(_blocks(memory), dtype=torch.bool)
            places[torch.from_numpy(plan.state_write[group]).long()] = True
            return places
        slots = torch.zeros(_blocks(memory) * self._cache.block_size, dtype=torch.bool)
        slots[torch.from_numpy(plan.slot_mapping[group]).long()] = True
        return slots.view(-1, self._cache.block_size)

    def _restore(self, kept: list[Tensor]) -> None:
        for memory, old in zip(self._memory, kept, strict=True):
            memory.copy_(old)

    def _restore_and_compare(
        self, eager: list[Tensor], places: list[Tensor], rtol: float, atol: float
    ) -> None:
        """What layers see of the memory now and when it is `eager`, block by block."""
        replayed = self._seen(places)
        self._restore(eager)
        for actual, expected in zip(replayed, self._seen(places), strict=True):
            torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, equal_nan=True)

    def _seen(self, places: list[Tensor]) -> list[Tensor]:
        found = []
        for layer, states, group in zip(
            self._cache.layers, self._cache.states, self._cache.layer_group, strict=True
        ):
            if group < 0:
                continue
            where = places[group].to(layer.device)
            if states:
                found += [each[where].float() for each in states]
            else:
                found.append(layer.float()[:, where])
        return found


def _tokens(positions: Any, place: Any) -> Any:
    """What a sequence has at these positions."""
    return (7 * positions + 13 * place) % _VOCABULARY


def _int32(values: Any) -> NDArray[np.int32]:
    return np.asarray(values, np.int32)


def _blocks(memory: Tensor) -> int:
    return memory.shape[2]


def _raw(memory: Tensor, places: Tensor) -> Tensor:
    """Bytes of all layers at `places` of blocks, or of blocks and slots."""
    return memory.view(torch.uint8)[:, :, places]
