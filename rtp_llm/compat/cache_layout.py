# SPDX-License-Identifier: Apache-2.0
"""The supported layouts of keys and values in a cache block, as strides for the kernels."""

from __future__ import annotations

from enum import Enum

from torch import Tensor

_VECTOR_BYTES = 16


class CacheLayout(Enum):
    """The layout of one block; vs elements are 16 bytes. AMD's kernels read the vectorised ones.

    PLAIN: keys and values [Hk, S, D] (in planes [S, Hk, D]). VECTOR: keys [Hk, D/vs, S, vs], values
    [Hk, S/vs, D, vs]. VECTOR_KEYS: keys as in VECTOR, values [Hk, D, S].
    """

    PLAIN = "plain"
    VECTOR = "vector"
    VECTOR_KEYS = "vector_keys"


def check_layouts(writer: CacheLayout, reader: CacheLayout) -> None:
    """Raise ValueError if the prefill `writer` and the decode `reader` use different layouts."""
    if writer is not reader:
        raise ValueError(
            f"the cache is written as {writer.value!r} and read as {reader.value!r}; expected one "
            "layout for both"
        )


def vector_size(element_size: int) -> int:
    """Number of contiguous elements (16 bytes) in a vectorised layout."""
    return _VECTOR_BYTES // element_size


def vector_rows(base: Tensor, layout: CacheLayout) -> tuple[Tensor, Tensor]:
    """Views of base [N, 2, Hk, S, D] as rotate_and_store takes caches in runs and chunks.

    Keys and values of 2 N rows each, [rows, S / a, a, Hk, D / c, c]; offsets name the row.
    """
    rows = base.flatten(0, 1)
    count, heads, tokens, channels = rows.shape
    width = vector_size(base.element_size())
    keys = rows.view(count, heads, channels // width, tokens, width)
    keys = keys.permute(0, 3, 1, 2, 4).unsqueeze(2)
    if layout is CacheLayout.VECTOR:
        values = rows.view(count, heads, tokens // width, channels, width)
        return keys, values.permute(0, 2, 4, 1, 3).unsqueeze(5)
    values = rows.view(count, heads, channels, tokens).permute(0, 3, 1, 2)
    return keys, values.unsqueeze(2).unsqueeze(5)
