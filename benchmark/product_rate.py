# SPDX-License-Identifier: Apache-2.0
"""How fast torch's libraries multiply matrices here: the limit of prompts and of large batches."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import torch
from torch import Tensor

_ROWS, _INNER, _COLUMNS = 512, 1024, 3072


def product_rate(kind: str, timer: Callable[[], float] = time.perf_counter) -> float:
    """Floating-point operations per second of the fastest of eight products.

    `kind` is float32, bfloat16 or int8 (8-bit operands, 32-bit sums), with torch's present threads.
    """
    left, right = _operands(kind)
    multiply = torch._int_mm if kind == "int8" else torch.mm
    best = float("inf")
    for _ in range(8):
        began = timer()
        multiply(left, right)
        best = min(best, timer() - began)
    return 2 * _ROWS * _INNER * _COLUMNS / best


@functools.cache
def _operands(kind: str) -> tuple[Tensor, Tensor]:
    shapes = (_ROWS, _INNER), (_INNER, _COLUMNS)
    if kind == "int8":
        left, right = (torch.randint(-127, 128, shape, dtype=torch.int8) for shape in shapes)
    else:
        left, right = (torch.randn(shape, dtype=getattr(torch, kind)) for shape in shapes)
    return left, right
