# SPDX-License-Identifier: Apache-2.0
"""Weights of experts as 4-bit codes of a table, which stay as they are stored."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rtp_llm import ops
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.layout import WeightLayout, rows_of
from rtp_llm.layers.weights.stored.table4 import Table4Format, Table4Memory
from rtp_llm.layers.weights.stored_format import FormatError, NamedTargets, StoredFormat
from rtp_llm.ops.moe.mxfp4_blocks import BLOCK

_FLOAT_BYTES = torch.float32.itemsize


class Table4Experts(WeightLayout):
    """codes int8 [..., rows, columns / 2] and scales float32 [..., rows, groups].

    Where scales are numbers of e4m3, they are bytes [..., rows, groups, filled up to whole words],
    and the word at the end of a row is the scale of the row; `split` takes it apart. Columns are
    padded with zeros to whole blocks of 32. All experts have the table of the first.
    """

    formats = frozenset({"nvfp4", "bitsandbytes_nf4", "bitsandbytes_fp4"})

    @classmethod
    def takes(cls, options: LayerOptions) -> bool:
        wanted = options.keeps_stored and options.quantization == "none"
        return wanted and ops.has_kernel("table4_grouped_linear", options.device.type)

    @classmethod
    def fits(cls, stored: Sequence[StoredFormat]) -> bool:
        first = stored[0]
        return isinstance(first, Table4Format) and all(
            isinstance(each, Table4Format) and each.in_blocks and first.goes_with(each)
            for each in stored
        )

    @property
    def kept(self) -> Table4Format:
        """The format of the first expert."""
        stored = self.stored[0]
        assert isinstance(stored, Table4Format)
        return stored

    @property
    def missing(self) -> int:
        """How many columns are padded."""
        return -self.columns % BLOCK

    @property
    def _groups(self) -> int:
        return -(-(self.columns + self.missing) // self.kept.column_block)

    def make(self, options: LayerOptions, *outer: int) -> tuple[nn.Parameter, nn.Parameter]:
        rows, width, groups = sum(self.parts.values()), self.columns + self.missing, self._groups
        codes = options.parameter(*outer, rows, width // 2, dtype=torch.int8)
        if not self.kept.scales_are_e4m3:
            return codes, options.parameter(*outer, rows, groups, dtype=torch.float32)
        filled = groups + -groups % _FLOAT_BYTES + _FLOAT_BYTES
        scales = options.parameter(*outer, rows, filled, dtype=torch.int8)
        if self.missing:
            codes.data.zero_()
            scales.data.zero_()
        return codes, scales

    def split(self, scales: Tensor) -> tuple[Tensor, Tensor | None]:
        """The scales [..., rows, groups] and those of rows float32 [..., rows], if there are any,
        as the kernel takes them."""
        if not self.kept.scales_are_e4m3:
            return scales, None
        of_rows = scales.view(torch.float32)[..., -1].contiguous()
        return scales[..., : self._groups].contiguous(), of_rows

    def targets(
        self, weight: Tensor, scale: Tensor, part: str, stored: StoredFormat
    ) -> NamedTargets:
        if not isinstance(stored, Table4Format) or not self.kept.goes_with(stored):
            raise FormatError(f"{part} is stored as {stored.name} with a table of its own")
        codes, scales = (rows_of(each.detach(), self.parts, part) for each in (weight, scale))
        of_rows = scales.view(torch.float32)[:, -1] if stored.scales_are_e4m3 else None
        codes = codes[:, : self.columns // 2].view(torch.uint8)
        scales = scales[:, : self.columns // stored.column_block]
        yield from stored.stored_targets(Table4Memory(codes, scales, of_rows))
