# SPDX-License-Identifier: Apache-2.0
"""How many blocks each cache group has: arithmetic over specs, settings and a memory budget.

Groups of full attention (MLA too) hold every token, so they all get the same number of blocks, n,
and n is the capacity. The others need less than that:

- Sliding window w: a running sequence keeps the blocks that its next query sees, at most
  ceil(w / S) + 1, and a step's chunks, C tokens in all, add ceil(C / S) and one for each sequence.
  With R sequences that is R * (ceil(w / S) + 2) + ceil(C / S). As much again is for the ends of
  cached prefixes, and never less than a quarter of n: a cached prefix of four windows or more can
  then be hit. More than n is never needed: a sequence has no more blocks here than in a full group.
- Recurrent: a block is one state. A running sequence keeps two, the one that it reads and the one
  that it writes (a published state is never written again), and as many again are for cached
  prefixes: 4 R, and one that pads. A state may be as large as thousands of tokens of keys and
  values, so states take at most STATE_SHARE of the budget, whatever R is: the scheduler lets
  sequences wait for a state as for a block.

The rest goes to n. With full groups alone n is the budget divided by the bytes of a block.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rtp_llm.attention.cache_spec import CacheGroup
from rtp_llm.worker.cache.budget import MIB, CacheBudget, CacheSizeError

# States of running sequences and of prefixes, as a multiple of max_running_requests.
STATES_PER_SEQUENCE = 4
# The minimum for one sequence to run: the state it reads, the one it writes, and the padding block.
LEAST_STATES = 3
# Tokens between two states that the prefix cache may keep. Prompts are cut there: more often would
# make smaller chunks, less often would find shorter prefixes.
STATE_INTERVAL = 256
# Half for states and half for tokens, which is what SGLang's mamba_full_memory_ratio of 0.9 means.
STATE_SHARE = 0.5
# Divisor of a full group's blocks: this part is for the windows of cached prefixes.
LEAST_WINDOW_SHARE = 4


@dataclass(frozen=True)
class CacheShape:
    """What determines the cost of blocks: the groups, tokens per block, and the largest step.

    ``max_running`` sequences run at once; a step computes at most ``max_batch_tokens`` tokens.
    """

    groups: tuple[CacheGroup, ...]
    block_size: int
    max_running: int
    max_batch_tokens: int

    def __post_init__(self) -> None:
        if self.groups and self.groups[0].spec.kind == "recurrent":
            raise ValueError("a cache is planned by its tokens: some layer must have attention")

    def num_blocks(self, full: int, states: int) -> tuple[int, ...]:
        """Blocks of each group if full groups have ``full`` and recurrent groups ``states``."""
        counts = {"full": full, "recurrent": states}
        return tuple(
            min(full, self._windows(spec.window, full)) if spec.window else counts[spec.kind]
            for spec in (group.spec for group in self.groups)
        )

    @property
    def state_interval(self) -> int:
        """Tokens, in whole blocks, after which a state may be kept; a step must reach it."""
        most = min(STATE_INTERVAL, self.max_batch_tokens)
        return max(1, most // self.block_size) * self.block_size

    def bytes(self, full: int, states: int) -> int:
        """Bytes taken by ``full`` and ``states`` blocks of the groups."""
        costs = (group.block_bytes(self.block_size) for group in self.groups)
        counts = self.num_blocks(full, states)
        return sum(cost * count for cost, count in zip(costs, counts, strict=True))

    def bytes_for(self, tokens: int) -> int:
        """Bytes of the blocks that one sequence of ``tokens`` needs, padding included."""
        return self.bytes(self._blocks(tokens) + 1, LEAST_STATES)

    def states_within(self, budget: int) -> int:
        """Blocks of each recurrent group; 0 without such a group."""
        cost = self.bytes(0, 1)
        most = 1 + STATES_PER_SEQUENCE * self.max_running
        if not cost:  # they are on other stages of a pipeline, if there are any
            recurrent = any(group.spec.kind == "recurrent" for group in self.groups)
            return most if recurrent else 0
        fit = int(STATE_SHARE * budget) // cost
        return max(LEAST_STATES, min(fit, most))

    def blocks_within(self, budget: int, tokens: int) -> tuple[int, int]:
        """Blocks of each full and of each recurrent group. States for more sequences give way to
        one sequence of ``tokens``, whose blocks may still be more than fit."""
        states = self.states_within(budget)
        full, needed = self._full_within(budget, states), self._blocks(tokens) + 1
        if full < needed and (cost := self.bytes(0, 1)):
            states = max(LEAST_STATES, (budget - self.bytes(needed, 0)) // cost)
            full = self._full_within(budget, states)
        return full, states

    def _full_within(self, budget: int, states: int) -> int:
        """The most blocks of a full group that fit along with the other groups' needs; 0 if none
        fits."""
        # A block costs at least what one of the cheapest group does, so no more can fit.
        least = min(
            max(1, len(group.layers)) * group.spec.block_bytes(self.block_size)
            for group in self.groups
        )
        candidates = range(1, max(0, budget) // least + 2)
        return bisect_right(candidates, budget, key=lambda full: self.bytes(full, states))

    def _windows(self, window: int, full: int) -> int:
        if all(group.spec.kind != "full" for group in self.groups):
            return full  # the capacity is counted in blocks of windows
        running = self.max_running * (self._blocks(window) + 2)
        live = 1 + running + self._blocks(self.max_batch_tokens)
        return max(2 * live, -(-full // LEAST_WINDOW_SHARE))

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size)


@dataclass(frozen=True)
class CachePlan:
    """The decision: ``num_blocks`` of each group, of which block 0 only pads.

    ``state_interval``: the tokens after which the state of a recurrent group may be kept.
    """

    num_blocks: tuple[int, ...]
    block_size: int
    state_interval: int
    max_model_len: int
    bytes: int

    def within(self, others: Sequence[CachePlan], shape: CacheShape) -> CachePlan:
        """The largest plan that all of ``others`` have room for too: the stages of a pipeline use
        the same blocks.

        ``shape`` is the cache shape of this stage.
        """
        plans = [self, *others]
        counts = tuple(map(min, zip(*(each.num_blocks for each in plans), strict=True)))
        pairs = zip(shape.groups, counts, strict=True)
        return replace(
            self,
            num_blocks=counts,
            max_model_len=min(each.max_model_len for each in plans),
            bytes=sum(group.block_bytes(self.block_size) * count for group, count in pairs),
        )

    @property
    def full_blocks(self) -> int:
        """Blocks of the group that holds the most tokens: it comes first; 0 without a cache."""
        return self.num_blocks[0] if self.num_blocks else 0

    @property
    def capacity(self) -> int:
        """How many tokens fit into the cache."""
        return max(0, self.full_blocks - 1) * self.block_size


def plan_cache(
    shape: CacheShape, budget: CacheBudget, *, context: int, max_seq_len: int | None
) -> CachePlan:
    """Choose the number of blocks and the longest sequence. Without groups there are no blocks.

    ``context`` is the context length of the model, ``max_seq_len`` the requested length (None:
    automatic, the length shrinks to what the cache holds).

    Raises:
        CacheSizeError: a sequence of ``max_seq_len`` tokens, or of one block, does not fit.
    """
    wanted = max_seq_len or context
    if not shape.groups:
        return CachePlan((), shape.block_size, shape.state_interval, wanted, 0)
    blocks, states = shape.blocks_within(budget.bytes, max_seq_len or shape.block_size)
    capacity = max(0, blocks - 1) * shape.block_size
    if capacity < shape.block_size or (max_seq_len is not None and capacity < max_seq_len):
        need = -(-shape.bytes_for(wanted) // MIB)
        raise CacheSizeError(
            f"the KV cache holds {capacity} tokens with {budget.source}, but one sequence of "
            f"max_seq_len={wanted} tokens needs {need} MiB: {budget.remedy}, or lower max_seq_len"
        )
    return CachePlan(
        num_blocks=shape.num_blocks(blocks, states),
        block_size=shape.block_size,
        state_interval=shape.state_interval,
        max_model_len=min(wanted, capacity),
        bytes=shape.bytes(blocks, states),
    )
