# SPDX-License-Identifier: Apache-2.0
"""The layout of packed_linear's weights."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from rtp_llm.ops.huge_pages import empty_on

PACKED_COLUMNS = 64


def pack_columns(weight: Tensor) -> Tensor:
    """[O, K] -> [ceil(O / 64), K, 64]: 64 outputs side by side, zeros after the last one."""
    padded = functional.pad(weight, (0, 0, 0, -weight.shape[0] % PACKED_COLUMNS))
    blocks = padded.reshape(len(padded) // PACKED_COLUMNS, PACKED_COLUMNS, weight.shape[1])
    packed = blocks.transpose(1, 2)
    return empty_on(weight.device, (*packed.shape,), weight.dtype).copy_(packed)


def unpack_columns(packed: Tensor, outputs: int) -> Tensor:
    """[ceil(O / 64), K, 64] -> [O, K]."""
    return packed.transpose(1, 2).flatten(0, 1)[:outputs]
