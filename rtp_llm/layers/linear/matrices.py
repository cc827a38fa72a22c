# SPDX-License-Identifier: Apache-2.0
"""Linear layers whose parts may have stored formats of their own."""

from __future__ import annotations

from abc import abstractmethod
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from rtp_llm import ops
from rtp_llm.layers.linear.base import Linear
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.stored_format import NamedTargets, StoredFormat


class MatricesLinear(Linear):
    """Each run of parts of one stored format has a matrix; those that are floats stay floats."""

    def make_weight(self, options: LayerOptions) -> None:
        self.matrices: Any = nn.ModuleList()  # of what matrix() returns
        self._places: dict[str, tuple[int, int]] = {}  # part -> its matrix, its first row there
        self._rows: list[int] = []
        for stored, run in groupby(self.parts, key=self.formats.__getitem__):
            rows = 0
            for part in run:
                self._places[part] = len(self._rows), rows
                rows += self.parts[part]
            self._rows.append(rows)
            self.matrices.append(self.matrix(rows, stored, options))

    @abstractmethod
    def matrix(self, rows: int, stored: StoredFormat, options: LayerOptions) -> nn.Module:
        """A module with product() and targets() as FloatMatrix has them, of parts of a format."""

    def forward(self, x: Tensor) -> Tensor:
        return self._product(x, False)

    def float_product(self, x: Tensor) -> Tensor:
        return self._product(x, True)

    def part_targets(self, name: str, first: int) -> NamedTargets:
        matrix, row = self._places[name]
        yield from self.matrices[matrix].targets(row, self.parts[name])

    def _product(self, x: Tensor, float_results: bool) -> Tensor:
        if len(self._rows) == 1:
            return self.matrices[0].product(x, self.bias, float_results)  # type: ignore[no-any-return]
        biases: Any = [None] * len(self._rows)
        if self.bias is not None:
            biases = self.bias.split(self._rows)  # type: ignore[no-untyped-call]
        products = [
            matrix.product(x, bias, float_results)
            for matrix, bias in zip(self.matrices, biases, strict=True)
        ]
        return torch.cat(products, 1)


class FloatMatrix(nn.Module):
    """A weight [rows, columns] that becomes floats while it loads."""

    def __init__(
        self, rows: int, columns: int, stored: StoredFormat, options: LayerOptions
    ) -> None:
        super().__init__()
        self._stored = stored
        self.weight = options.parameter(rows, columns, lasting=True)

    def product(self, x: Tensor, bias: Tensor | None, float_results: bool) -> Tensor:
        product = ops.linear(x, self.weight, bias)
        return product.float() if float_results else product

    def targets(self, first: int, rows: int) -> NamedTargets:
        yield from self._stored.float_targets(self.weight.detach().narrow(0, first, rows))
