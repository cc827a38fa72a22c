# SPDX-License-Identifier: Apache-2.0
"""A weight that stays in the blocks of a GGUF file."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from rtp_llm import ops
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.gguf_blocks import BLOCKS, GgufBlocks, activation_bits
from rtp_llm.layers.weights.stored_format import NamedTargets
from rtp_llm.layers.weights.targets import RowsTarget


class GgufMatrix(nn.Module):
    """A weight [rows, columns]; its blocks are interleaved once they are loaded, in place.

    Activations are quantised on the fly, unless the settings keep them as they are; to how many
    bits depends on the layer's `parts`.
    """

    def __init__(
        self,
        rows: int,
        columns: int,
        stored: GgufBlocks,
        options: LayerOptions,
        parts: Iterable[str],
    ) -> None:
        super().__init__()
        self._kind, self._columns, self._dtype = stored.kind.name, columns, options.dtype
        self._bits = activation_bits(options.settings.gguf_activations, parts)
        shape = stored.shapes(rows, columns)[BLOCKS]
        self.blocks = options.parameter(*shape, dtype=torch.int8, lasting=True)

    def product(self, x: Tensor, bias: Tensor | None = None, float_results: bool = False) -> Tensor:
        """x [T, columns] @ weight.T + bias -> [T, rows] of x's dtype, or float32."""
        return ops.gguf_linear(x, self.blocks, self._kind, bias, self._bits, float_results)

    def lookup(self, ids: Tensor) -> Tensor:
        """The rows of int32 ids [T] -> [T, columns]."""
        rows = torch.empty(len(ids), self._columns, dtype=self._dtype, device=ids.device)
        ops.gguf_embedding(ids, self.blocks, self._kind, rows)
        return rows

    def targets(self, first: int, rows: int) -> NamedTargets:
        """Targets of `rows` rows from `first` on."""
        yield BLOCKS, RowsTarget(self.blocks.detach().view(torch.uint8), first, rows)

    def finish_loading(self) -> None:
        ops.gguf_interleave(self.blocks, self._kind)
