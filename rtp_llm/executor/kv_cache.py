"""The KV cache's memory: one tensor for each cache group, seen by each layer as its own part."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.ops import huge_pages

if TYPE_CHECKING:
    from rtp_llm.executor.cache_plan import CachePlan
    from rtp_llm.models.config import ModelConfig


class KVCache:
    """``groups[g]`` is [L, 2, N, S, Hk, D] over the L layers of the group; ``layers`` in the order
    of the model, [2, N, S, Hk, D] each.

    The memory is not initialised: the system gives its pages when they are first written.
    """

    def __init__(
        self, config: ModelConfig, plan: CachePlan, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.layer_group = config.layer_groups
        block = (plan.num_blocks, plan.block_size, config.num_kv_heads, config.head_dim)
        self.groups = tuple(
            _allocate((self.layer_group.count(group), 2, *block), dtype, device)
            for group in range(len(config.cache_windows))
        )
        parts = [iter(group) for group in self.groups]
        self.layers: tuple[Tensor, ...] = tuple(next(parts[g]) for g in self.layer_group)

    def copy_blocks(self, group: int, pairs: Tensor) -> None:
        """Copy whole blocks of all layers of a group; pairs int32 [P, 2] of (source, target)."""
        memory = self.groups[group]
        # The copy moves bytes, and its operator knows no number of 8 bits.
        ops.copy_blocks(memory.view(torch.float16) if memory.itemsize == 1 else memory, pairs)


def _allocate(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type == "cpu":
        return huge_pages.empty(shape, dtype)
    return torch.empty(shape, dtype=dtype, device=device)
