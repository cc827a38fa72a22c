# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch reference of the block copy."""

from __future__ import annotations

from torch import Tensor


def copy_blocks_reference(cache: Tensor, pairs: Tensor) -> None:
    """Plain PyTorch reference of `ops.copy_blocks`: same arguments and results."""
    sources, destinations = pairs[:, 0].tolist(), pairs[:, 1].tolist()
    if len(set(destinations)) < len(destinations) or set(destinations) & set(sources):
        raise RuntimeError("copy_blocks: a destination occurs twice or is also a source")
    if any(not 0 <= block < cache.shape[2] for block in sources + destinations):
        raise IndexError(f"copy_blocks: a block is outside the {cache.shape[2]} of the cache")
    cache[:, :, destinations] = cache[:, :, sources]
