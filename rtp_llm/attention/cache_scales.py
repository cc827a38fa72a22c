# SPDX-License-Identifier: Apache-2.0
"""The scales of a layer's keys and values in a KV cache of 8-bit floats."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class CacheScales:
    """What keys and values are divided by when they are stored, and multiplied by when read.

    `keys` and `values` float32 [1] are on the device; `key` is that of keys, for the host.
    """

    key: float
    keys: Tensor
    values: Tensor

    @classmethod
    def of(cls, key: float, value: float, device: torch.device) -> CacheScales:
        """The scales of two numbers on `device`."""
        keys, values = (torch.tensor([scale], device=device) for scale in (key, value))
        return cls(key, keys, values)


def tensors_of(scales: CacheScales | None) -> tuple[Tensor | None, Tensor | None]:
    """The scales of keys and of values as operators take them."""
    return (None, None) if scales is None else (scales.keys, scales.values)
