# SPDX-License-Identifier: Apache-2.0
"""Columns of value heads in the order of GGUF files: [heads of a key head, key heads]."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rtp_llm.layers.weights.gguf_blocks import BLOCKS, GgufBlocks
from rtp_llm.layers.weights.shard import Shard
from rtp_llm.layers.weights.targets import WeightTarget
from rtp_llm.ops.gguf.blocks import dequantize


@dataclass(frozen=True)
class TiledHeads:
    """A matrix whose columns are heads of `size` in that order, and whose blocks of `stored` hold
    columns of several heads, so that blocks cannot change places.

    `key_heads`: the model's key heads of this rank; each has `per_key` value heads.
    """

    stored: GgufBlocks
    key_heads: Shard
    per_key: int
    size: int

    def tiled(self, x: Tensor) -> Tensor:
        """x [T, columns] in the layers' order, the value heads of a key head together, in that of
        the matrix."""
        heads = torch.unflatten(x, 1, (self.key_heads.size, self.per_key, self.size))
        return heads.transpose(1, 2).flatten(1)

    def float_target(self, target: WeightTarget) -> WeightTarget:
        """The target of the blocks that gives their floats to `target` in the layers' order."""
        heads = torch.arange(self.key_heads.whole * self.per_key * self.size)
        heads = heads.view(self.per_key, self.key_heads.whole, self.size).transpose(0, 1)
        local = torch.cat([heads[start:end] for start, end in self.key_heads.ranges])
        return _ChosenColumns(target, self.stored, local.flatten(), heads.numel())


class _ChosenColumns:
    """Takes rows of blocks, and gives the floats of some columns to `target`."""

    def __init__(
        self, target: WeightTarget, stored: GgufBlocks, columns: Tensor, whole: int
    ) -> None:
        self._target, self._stored, self._columns = target, stored, columns
        self.shape = stored.shapes(target.shape[0], whole)[BLOCKS]

    def destination(self, start: int, stop: int) -> Tensor | None:
        return None

    def write(self, start: int, rows: Tensor) -> None:
        kind = self._stored.kind
        blocks = rows.cpu().view(len(rows), -1, kind.block_bytes)
        self._target.write(start, dequantize(kind.name, blocks).flatten(1)[:, self._columns])
