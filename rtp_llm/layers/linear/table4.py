# SPDX-License-Identifier: Apache-2.0
"""The linear layer with 4-bit codes of a table, as NVFP4 and bitsandbytes have them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from rtp_llm import ops
from rtp_llm.layers.linear.mxfp4 import OneExpertLinear
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.layout import rows_of
from rtp_llm.layers.weights.stored.table4 import Table4Format, Table4Memory
from rtp_llm.layers.weights.stored_format import FormatError, NamedTargets
from rtp_llm.ops.moe.mxfp4_blocks import BLOCK


class Table4Linear(OneExpertLinear):
    """codes int8 [1, rows, columns / 2] hold bytes, the even column in the low four bits.

    scales [1, rows, groups] are float32; or bytes of e4m3, which row_scales float32 [1, rows]
    multiply. Columns are padded with zeros to whole blocks of 32. Activations are not quantised.
    Raises FormatError for parts whose tables or groups differ.
    """

    row_scales: torch.nn.Parameter | None

    def make_weight(self, options: LayerOptions) -> None:
        first, *others = (self._format(name) for name in self.parts)
        if not all(first.goes_with(each) for each in others):
            names = " and ".join(sorted(self.parts))
            raise FormatError(f"{names} have tables or groups of their own")
        self._kept, self._missing = first, -self.columns % BLOCK
        columns = self.columns + self._missing
        self.codes = options.parameter(1, self.rows, columns // 2, dtype=torch.int8)
        groups = -(-columns // first.column_block)
        dtype = torch.int8 if first.scales_are_e4m3 else torch.float32
        self.scales = options.parameter(1, self.rows, groups, dtype=dtype)
        self.table = options.parameter(len(first.table), dtype=torch.float32)
        self.row_scales = None
        if first.scales_are_e4m3:
            self.row_scales = options.parameter(1, self.rows, dtype=torch.float32)
        if self._missing:
            self.codes.data.zero_()
            self.scales.data.zero_()

    def _format(self, name: str) -> Table4Format:
        stored = self.formats[name]
        assert isinstance(stored, Table4Format)
        return stored

    def forward(self, x: Tensor) -> Tensor:
        if self._missing:
            x = functional.pad(x, (0, self._missing))
        return ops.table4_grouped_linear(
            x.contiguous(),
            self.codes,
            self.scales,
            self.table,
            self.offsets_of(x),
            self.row_scales,
            self.bias_of_expert(),
        )

    def part_targets(self, name: str, first: int) -> NamedTargets:
        stored = self._format(name)
        codes, scales = (
            rows_of(each.detach()[0], self.parts, name) for each in (self.codes, self.scales)
        )
        row_scales = None
        if self.row_scales is not None:
            row_scales = rows_of(self.row_scales.detach()[0], self.parts, name)
        codes = codes[:, : self.columns // 2].view(torch.uint8)
        scales = scales[:, : self.columns // stored.column_block]
        yield from stored.stored_targets(Table4Memory(codes, scales, row_scales))

    def finish_loading(self) -> None:
        self.table.data.copy_(torch.tensor(self._kept.table))
