# SPDX-License-Identifier: Apache-2.0
"""Evenly random routing: what experts cost must not depend on how random weights route."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor

from rtp_llm.layers.linear.factory import make_float_product

_ROWS = 2**15  # of random logits; a step has at most half as many tokens
_STRIDE = 977  # rows between what the first tokens of two layers get

FloatProduct = Callable[[Tensor, Tensor], Tensor]


@contextmanager
def uniform_routing(*, on: bool = True) -> Iterator[None]:
    """Models that are made inside choose experts at random, evenly, each layer others.

    Their routers compute logits as ever, and select among random ones instead.
    """
    layers, tables = itertools.count(), dict[torch.device, Tensor]()

    def make(weight: Tensor) -> FloatProduct:
        if weight.device not in tables:
            generator = torch.Generator(weight.device).manual_seed(0)
            logits = torch.empty(_ROWS, len(weight), device=weight.device)
            tables[weight.device] = logits.normal_(generator=generator)
        first = _STRIDE * next(layers) % (_ROWS // 2)
        return _instead(make_float_product(weight), tables[weight.device][first:])

    if not on:
        yield
        return
    with mock.patch("rtp_llm.layers.moe.gate.make_float_product", make):
        yield


def _instead(product: FloatProduct, logits: Tensor) -> FloatProduct:
    def compute(x: Tensor, weight: Tensor) -> Tensor:
        product(x, weight)
        if len(x) > _ROWS // 2:
            raise ValueError(f"{len(x)} tokens in a step: at most {_ROWS // 2} can be routed")
        return logits[: len(x)]

    return compute
