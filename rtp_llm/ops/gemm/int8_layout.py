# SPDX-License-Identifier: Apache-2.0
"""The weight layout of int8_linear: see rtp_llm/kernels/cpu/gemm/linear_int8.h."""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.huge_pages import empty_on

GROUP_SIZE = 64  # columns that share a scale
_BLOCK_ROWS = 16
_STEP_COLUMNS = 4
_STEPS = GROUP_SIZE // _STEP_COLUMNS


def num_groups(columns: int) -> int:
    """Groups of a row, the last of which may be partly filled."""
    return -(-columns // GROUP_SIZE)


def pack(weight: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """The kernel's layout of weight int8 [O, K] and scale float32 [O, num_groups(K)].

    Returns int8 [O, K rounded up to groups] and float32 [O, groups]; only their numbers of elements
    have a meaning. ValueError when the two do not fit together.
    """
    rows, columns = weight.shape
    groups = num_groups(columns)
    if scale.shape != (rows, groups):
        raise ValueError(
            f"scale is {list(scale.shape)} for a weight {list(weight.shape)}; "
            f"expected {[rows, groups]}"
        )
    packed = empty_on(weight.device, (rows, groups * GROUP_SIZE), torch.int8)
    packed_scale = empty_on(weight.device, (rows, groups), torch.float32)
    for span in _spans(rows):
        part = weight[span]
        if columns < groups * GROUP_SIZE:
            part = torch.nn.functional.pad(part, (0, groups * GROUP_SIZE - columns))
        target = _packed_view(packed, span)
        source = _plain_view(part.contiguous(), span)
        # The four bytes of a step stay together: as one number they are copied faster.
        target.view(torch.int32).copy_(source.view(torch.int32))
        target.view(torch.uint8).bitwise_xor_(0x80)
        _packed_scale_view(packed_scale, span).copy_(_plain_scale_view(scale[span], span))
    return packed, packed_scale


def unpack(packed: Tensor, packed_scale: Tensor) -> tuple[Tensor, Tensor]:
    """What pack() was given, with columns of zeros up to whole groups."""
    weight, scale = torch.empty_like(packed), torch.empty_like(packed_scale)
    for span in _spans(packed.shape[0]):
        _plain_view(weight[span], span).copy_(_packed_view(packed, span))
        _plain_scale_view(scale[span], span).copy_(_packed_scale_view(packed_scale, span))
    weight.view(torch.uint8).bitwise_xor_(0x80)
    return weight, scale


def _spans(rows: int) -> list[slice]:
    """The rows of whole blocks, and the rows of a smaller last block."""
    whole = rows // _BLOCK_ROWS * _BLOCK_ROWS
    return [span for span in (slice(0, whole), slice(whole, rows)) if span.start < span.stop]


def _blocks(span: slice) -> tuple[int, int]:
    """How many blocks `span` has, and how many rows each of them."""
    count = span.stop - span.start
    rows = min(_BLOCK_ROWS, count)
    return count // rows, rows


def _plain_view(part: Tensor, span: slice) -> Tensor:
    """[blocks, groups, steps, rows, 4] of contiguous rows [n, columns]."""
    blocks, rows = _blocks(span)
    groups = part.shape[1] // GROUP_SIZE
    return part.view(blocks, rows, groups, _STEPS, _STEP_COLUMNS).permute(0, 2, 3, 1, 4)


def _packed_view(packed: Tensor, span: slice) -> Tensor:
    """[blocks, groups, steps, rows, 4] of the packed weight."""
    blocks, rows = _blocks(span)
    groups = packed.shape[1] // GROUP_SIZE
    return packed[span].view(blocks, groups, _STEPS, rows, _STEP_COLUMNS)


def _plain_scale_view(part: Tensor, span: slice) -> Tensor:
    """[blocks, groups, rows] of scales [n, groups]."""
    return part.reshape(*_blocks(span), part.shape[1]).transpose(1, 2)


def _packed_scale_view(packed_scale: Tensor, span: slice) -> Tensor:
    """[blocks, groups, rows] of the packed scales."""
    blocks, rows = _blocks(span)
    return packed_scale[span].view(blocks, packed_scale.shape[1], rows)
