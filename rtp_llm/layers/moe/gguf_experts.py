# SPDX-License-Identifier: Apache-2.0
"""Experts whose weights stay in the blocks of a GGUF file."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.device import Support
from rtp_llm.layers.moe.executor import ExpertContext, ExpertWeights, has_kernels
from rtp_llm.layers.moe.grouped import PRODUCTS, GroupedExecutor, Product
from rtp_llm.layers.weights.gguf_layout import GgufExperts, Matrix
from rtp_llm.layers.weights.stacked import StackedLinearWeights

_OPERATORS = ("sort_by_expert", "gguf_grouped_linear", "sum_experts")


class GgufExecutor(GroupedExecutor):
    """Products of all chosen experts at once, with blocks as they are stored."""

    name: ClassVar[str] = "gguf"
    priority: ClassVar[int] = 20

    def __init__(self, context: ExpertContext, weights: ExpertWeights) -> None:
        super().__init__(context, weights)
        self._products = {name: _Products(self._layer(name)) for name in PRODUCTS}

    @classmethod
    def supports(cls, context: ExpertContext) -> Support:
        if context.weights != "gguf":
            return Support.no(f"it takes the blocks of GGUF files, not {context.weights} weights")
        return has_kernels(context, _OPERATORS)

    def _product(self, name: Product, x: Tensor, offsets: Tensor) -> Tensor:
        return self._products[name](x, offsets)

    def finish_loading(self) -> None:
        for products in self._products.values():
            products.finish_loading()


class _Products:
    """The products of rows with the experts that they were sorted by."""

    def __init__(self, weights: StackedLinearWeights) -> None:
        layout = weights.layout
        assert isinstance(layout, GgufExperts), "weights in blocks"
        self._bits = layout.activation_bits
        self._matrices: list[Matrix] = list(layout.matrices(weights.weight.detach()))
        self._biases: list[Tensor | None] = [None] * len(self._matrices)
        if (bias := weights.bias) is not None:
            self._biases = [bias[:, rows.start : rows.stop] for _, _, rows in self._matrices]

    def __call__(self, x: Tensor, offsets: Tensor) -> Tensor:
        """x [R, K]; rows offsets[e] to offsets[e + 1] belong to expert e -> [R, N]."""
        products = [
            ops.gguf_grouped_linear(x, blocks, kind, offsets, bias, self._bits)
            for (blocks, kind, _), bias in zip(self._matrices, self._biases, strict=True)
        ]
        return products[0] if len(products) == 1 else torch.cat(products, 1)

    def finish_loading(self) -> None:
        """Interleave the blocks, in place."""
        for blocks, kind, _ in self._matrices:
            for of_expert in blocks:
                ops.gguf_interleave(of_expert, kind)
