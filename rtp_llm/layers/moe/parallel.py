# SPDX-License-Identifier: Apache-2.0
"""Expert parallelism: the dispatcher, and the steps that modify a selection before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from rtp_llm import ops
from rtp_llm.device import Device
from rtp_llm.distributed.balancer import BalancedLayer
from rtp_llm.distributed.dispatch import AllToAll, Sent
from rtp_llm.distributed.dispatch_modes import DispatchModes
from rtp_llm.distributed.expert_load import ExpertLoad
from rtp_llm.distributed.placement import ExpertMap, Placement
from rtp_llm.distributed.rows import TokenRows
from rtp_llm.distributed.symmetric_dispatch import SymmetricDispatch
from rtp_llm.distributed.world import World
from rtp_llm.layers.moe.block import MoeBlock
from rtp_llm.layers.moe.config import MoeConfig
from rtp_llm.layers.moe.dispatcher import Dispatched, LocalDispatcher, SelectionStep


@dataclass(frozen=True)
class ParallelOptions:
    """`redundant`: number of physical experts in addition to the logical ones.

    `counts`: selections are counted. `moves`: experts may be moved between ranks. `fake_balance`:
    selections are replaced by perfectly balanced ones. `padded_tokens`: steps of at most this many
    tokens per rank use messages of fixed size.
    """

    redundant: int = 0
    counts: bool = False
    moves: bool = False
    fake_balance: bool = False
    padded_tokens: int = 0


class ParallelDispatcher:
    """Tokens go to the ranks of their experts, and the ranks' sums come back."""

    name: ClassVar[str] = "ranks"
    priority: ClassVar[int] = 2
    # If the tokens of all ranks select the experts of one rank, its products must not take more
    # memory than the largest step of a single rank.
    max_rows: ClassVar[int | None] = 8192

    def __init__(self, modes: DispatchModes, local_experts: tuple[int, ...]) -> None:
        self.local_experts = local_experts
        self._modes = modes

    def prepare(self, x: Tensor, ids: Tensor, weights: Tensor) -> Dispatched:
        all_to_all = self._modes.current
        rows, sent = all_to_all.dispatch(TokenRows(x, ids, weights))
        return Dispatched(rows.x, rows.ids, rows.weights, (all_to_all, sent))

    def finalize(self, dispatched: Dispatched, out: Tensor) -> Tensor:
        meta: tuple[AllToAll, Sent] = dispatched.meta  # type: ignore[assignment]
        all_to_all, sent = meta
        return all_to_all.combine(out, sent)


class ParallelExperts:
    """The ExpertHooks of a rank in an expert-parallel group, set as LayerOptions.experts.

    `layers` are the blocks in order, for the balancer.
    """

    def __init__(
        self,
        world: World,
        device: Device,
        config: MoeConfig,
        moe_layers: Sequence[bool],
        options: ParallelOptions,
        direct: SymmetricDispatch | None = None,
        part: range | None = None,
    ) -> None:
        """Create the hooks.

        `moe_layers`: for each layer of the model, whether it is a mixture of experts. `part`: the
        experts of these ranks, if other tensor-parallel ranks hold the rest; None: all. `direct`:
        ranks write tokens into each other's memory.

        Raises ValueError if experts cannot be divided evenly among the ranks.
        """
        self._part = part or range(config.num_experts)
        self._divided = len(self._part) < config.num_experts
        first = Placement.initial(len(self._part), options.redundant, world.size)
        place = device.torch_device
        self._positions = {
            layer: position
            for position, layer in enumerate(i for i, has in enumerate(moe_layers) if has)
        }
        count = len(self._positions)
        self.modes = DispatchModes(world, first.slots, options.padded_tokens, direct)
        self.layers = [
            BalancedLayer(first, ExpertMap(first, world.rank, place)) for _ in range(count)
        ]
        self.loads = ExpertLoad(count, config.num_experts, place)
        self._world, self._options = world, options
        self._blocks: list[MoeBlock] = []
        self._empty: Tensor | None = None  # bool [T, 1]: rows that hold no token, in a padded step

    def dispatcher(self, index: int, config: MoeConfig) -> ParallelDispatcher:
        """The dispatcher of the block of layer `index`."""
        placement = self.layers[self._positions[index]].placement
        here = placement.on_rank(self._world.rank)
        return ParallelDispatcher(self.modes, tuple(self._part[each] for each in here))

    def steps(self, index: int, config: MoeConfig) -> tuple[SelectionStep, ...]:
        """Balanced selections if requested, counts, the map from logical to physical experts."""
        position, options = self._positions[index], self._options
        steps: list[SelectionStep] = [self._of_part] if self._divided else []
        if options.fake_balance:
            steps.append(fake_balance(config, self._world.rank, self._world.size))
        if options.counts:
            steps.append(self.loads.counter(position))
        if options.redundant or options.moves:
            expert_map = self.layers[position].map
            steps.append(lambda ids, weights: expert_map.apply(ids))
        return (*steps, self._leave_out)

    @property
    def of_drafts(self) -> EvenSelections | None:
        """Draft layers never wait for other ranks, as each may draft any number of tokens."""
        return EvenSelections() if self._options.fake_balance else None

    def _of_part(self, ids: Tensor, weights: Tensor) -> None:
        """Renumber the experts of these ranks from 0; the others are computed elsewhere."""
        ids.sub_(self._part.start)
        ids.masked_fill_((ids < 0) | (ids >= len(self._part)), -1)

    def _leave_out(self, ids: Tensor, weights: Tensor) -> None:
        if self._empty is not None:
            ids.masked_fill_(self._empty, -1)

    @contextmanager
    def padded(self, rows: int, tokens: Tensor, alone: bool = False) -> Iterator[None]:
        """Context for a step of `rows` rows, of which the first `tokens` (int32 [1]) hold tokens.

        The other rows go to no expert and are not counted. All ranks run the same number of rows,
        unless this rank runs a trial step `alone`. Never waits, so a graph can capture it.
        """
        self.modes.fix(rows, alone)
        self._empty = torch.arange(rows, device=tokens.device)[:, None] >= tokens
        self.loads.rows = (~self._empty).long()
        try:
            yield
        finally:
            self._empty = self.loads.rows = None

    def attach(self, model: nn.Module) -> None:
        """Attach the loaded model, whose blocks use these hooks, after its trial steps."""
        self.loads.take()  # selections of trial steps, which repeat one token, are meaningless
        blocks = (each for each in model.modules() if isinstance(each, MoeBlock))
        self._blocks = [each for each in blocks if isinstance(each.dispatcher, ParallelDispatcher)]
        for layer, block in zip(self.layers, self._blocks, strict=True):
            layer.weights = tuple(parameter.data for parameter in block.experts.parameters())

    def take_part(self) -> None:
        """Run this rank's experts in a step of the other ranks in which it has no tokens."""
        for block in self._blocks:
            k, gate = block.config.top_k, block.gate.weight
            x = gate.new_empty(0, block.config.hidden_size)
            ids = torch.empty(0, k, dtype=torch.int32, device=x.device)
            block.route(x, ids, torch.empty(0, k, device=x.device))


class EvenSelections:
    """ExpertHooks of a process with all experts that balances their load; for benchmarks only."""

    def dispatcher(self, index: int, config: MoeConfig) -> LocalDispatcher:
        """The dispatcher for all experts in this process."""
        return LocalDispatcher(config.num_experts)

    def steps(self, index: int, config: MoeConfig) -> tuple[SelectionStep, ...]:
        """The step that replaces selections by balanced ones."""
        return (fake_balance(config, 0, 1),)

    @property
    def of_drafts(self) -> EvenSelections:
        """The same hooks, since draft layers are balanced as well."""
        return self


def fake_balance(config: MoeConfig, rank: int, size: int) -> SelectionStep:
    """Create a step that replaces selections by balanced ones; for benchmarks only.

    This is `rank` of `size` data-parallel ranks, among which the experts are divided.
    """
    return partial(
        ops.fake_balance_expert,
        expert_num=config.num_experts,
        dp_rank=rank,
        dp_size=size,
        ep_size=size,
    )
