"""The KV cache's memory: one tensor for each cache group, seen by each layer as its own part."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.ops.huge_pages import empty_on

if TYPE_CHECKING:
    from rtp_llm.models.config import ModelConfig
    from rtp_llm.worker.cache.plan import CachePlan


class KVCache:
    """``groups[g]`` is [L, P, N, S, Hk, D] over the L layers of the group; ``layers`` in the order
    of the model, [P, N, S, Hk, D] each. The P planes are keys and values, or one of latents.

    The memory is not initialised: the system gives its pages when they are first written.
    """

    def __init__(
        self, config: ModelConfig, plan: CachePlan, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.layer_group = config.layer_groups
        planes, *row = config.cache_row
        block = (plan.num_blocks, plan.block_size, *row)
        self.groups = tuple(
            empty_on(device, (self.layer_group.count(group), planes, *block), dtype)
            for group in range(len(config.cache_windows))
        )
        parts = [iter(group) for group in self.groups]
        self.layers: tuple[Tensor, ...] = tuple(next(parts[g]) for g in self.layer_group)

    def copy_blocks(self, group: int, pairs: Tensor) -> None:
        """Copy whole blocks of all layers of a group; pairs int32 [P, 2] of (source, target)."""
        memory = self.groups[group]
        # The copy moves bytes, and its operator knows no number of 8 bits.
        ops.copy_blocks(memory.view(torch.float16) if memory.itemsize == 1 else memory, pairs)
