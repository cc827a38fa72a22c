# SPDX-License-Identifier: Apache-2.0
"""Pages of a cache of 8-bit floats, gathered and widened to 16-bit ones in one pass, in Triton."""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.declare import MutableTensor, operator


@operator(triton="kv_cache.widen_pages:widen_pages")
def widen_pages(cache: Tensor, pages: Tensor, out: MutableTensor) -> None:
    """In place: out[i] = cache[pages[i]].

    `cache` [N, E] float8_e4m3fn, `pages` int32 [P] within [0, N), `out` [P, E] in bfloat16 or
    float16, all contiguous.
    """
