# SPDX-License-Identifier: Apache-2.0
"""Stored formats whose weights some GPUs multiply as integers in tiles."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import torch

from rtp_llm import ops
from rtp_llm.layers.weights.stored_format import StoredFormat
from rtp_llm.ops.gemm.tiled_wna16_layout import takes

if TYPE_CHECKING:
    from rtp_llm.device import Device


class TiledFormat(StoredFormat):
    """A format whose numbers are integers, or become integers if they are doubled.

    GPUs with kernels of integers in tiles, and none of the numbers as they are stored, repack them.
    """

    @abstractmethod
    def why_not_as_stored(self, device: Device) -> str:
        """Why no kernel on `device` multiplies the numbers as they are; empty if one does."""

    def why_not_tiled(self, dtype: torch.dtype) -> str:
        """Why GPUs whose kernels multiply integers in tiles dequantise it; empty if they do not."""
        return "" if dtype is torch.bfloat16 else "GPUs multiply it with activations in bfloat16"

    def why_dequantized(self, dtype: torch.dtype, device: Device) -> str:
        why = self.why_not_as_stored(device)
        return self.why_not_tiled(dtype) if why and _has_tiles(device) else why

    def fits(self, rows: int, columns: int, device: Device) -> bool:
        is_tiled = _has_tiles(device) and bool(self.why_not_as_stored(device))
        return not is_tiled or takes(rows, columns, 0)


def _has_tiles(device: Device) -> bool:
    return ops.has_kernel("tiled_wna16_linear", device.capabilities().torch_type)
