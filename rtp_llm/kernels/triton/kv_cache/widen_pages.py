# SPDX-License-Identifier: Apache-2.0
"""Gathers pages of an FP8 cache and widens them to 16-bit floats in one pass."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_PART = 4096  # elements per program: each thread loads 16 bytes
_WARPS = 8


@triton.jit
def _widen_kernel(cache_ptr, pages_ptr, out_ptr, PAGE: tl.constexpr, PART: tl.constexpr):
    index = tl.program_id(0)
    offsets = tl.program_id(1) * PART + tl.arange(0, PART)
    source = tl.load(pages_ptr + index).to(tl.int64) * PAGE
    numbers = tl.load(cache_ptr + source + offsets, mask=offsets < PAGE)
    target = out_ptr + index.to(tl.int64) * PAGE
    tl.store(target + offsets, numbers.to(out_ptr.dtype.element_ty), mask=offsets < PAGE)


def widen_pages(cache: Tensor, pages: Tensor, out: Tensor) -> None:
    """See rtp_llm.ops.widen_pages."""
    count, page = out.shape
    if count:
        grid = (count, triton.cdiv(page, _PART))
        _widen_kernel[grid](cache, pages, out, page, _PART, num_warps=_WARPS)
