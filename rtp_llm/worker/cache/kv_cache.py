# SPDX-License-Identifier: Apache-2.0
"""The cache's memory: one tensor for each cache group, seen by each layer as its own part."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.attention.cache_spec import CacheGroup, CacheGroups, RecurrentSpec
from rtp_llm.ops.huge_pages import empty_on


class KVCache:
    """``memory[g]`` is the cache of the layers of group g, [L, P, N, ...]. ``layers`` has each
    layer's part [P, N, ...] as its spec describes it, in the order of the model; a layer that keeps
    nothing has an empty tensor. ``states`` of a recurrent layer are [N, ...] each; other layers
    have none. ``recurrent`` lists the recurrent groups.

    The memory is not initialised: the system provides its pages when they are first written.
    """

    def __init__(
        self,
        groups: CacheGroups,
        num_blocks: Sequence[int],
        block_size: int,
        device: torch.device,
    ) -> None:
        """``num_blocks`` of each group."""
        self.groups = groups.groups
        self.layer_group = groups.layer_group
        self.recurrent = tuple(
            g for g, group in enumerate(self.groups) if group.spec.kind == "recurrent"
        )
        self.block_size = block_size  # of attention
        self.memory = tuple(
            _memory(group, blocks, block_size, device)
            for group, blocks in zip(self.groups, num_blocks, strict=True)
        )
        self._pages: dict[int, Tensor] = {}  # views of it
        parts = [iter(memory) for memory in self.memory]
        nothing = torch.empty(0, device=device)
        self.layers: tuple[Tensor, ...] = tuple(
            nothing if g < 0 else next(parts[g]) for g in self.layer_group
        )
        self.states = tuple(
            spec.states(layer) if isinstance(spec, RecurrentSpec) and group >= 0 else ()
            for spec, layer, group in zip(groups.specs, self.layers, self.layer_group, strict=True)
        )

    def copy_blocks(self, group: int, pairs: Tensor) -> None:
        """Copy whole blocks of all layers of a group; pairs int32 [P, 2] of (source, target)."""
        if not self.groups[group].layers:
            return
        if group not in self._pages:
            self._pages[group] = _as_pages(self.memory[group])
        ops.copy_blocks(self._pages[group], pairs)

    def copy_forked(self, group: int, pairs: Tensor) -> None:
        """The same for pairs that only the device knows; those with source -1 are skipped."""
        if pairs.device.type == "cpu":  # there the operator checks its pairs
            pairs = pairs[pairs[:, 0] >= 0]
        self.copy_blocks(group, pairs)


def _as_pages(memory: Tensor) -> Tensor:
    """View as [L, P, N, S, Hk, D] with a dtype that the operator knows: it only moves bytes."""
    wide = memory.view(torch.float16) if memory.itemsize == 1 else memory
    return wide if wide.dim() == 6 else wide[..., None, None]


def _memory(group: CacheGroup, num_blocks: int, block_size: int, device: torch.device) -> Tensor:
    shape = group.spec.layer_shape(num_blocks, block_size)
    return empty_on(device, (len(group.layers), *shape), group.spec.memory_dtype)
