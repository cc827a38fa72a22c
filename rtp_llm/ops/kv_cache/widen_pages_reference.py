# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch reference of widen_pages."""

from __future__ import annotations

import torch
from torch import Tensor


def widen_pages_reference(cache: Tensor, pages: Tensor, out: Tensor) -> None:
    """See rtp_llm.ops.widen_pages; 8-bit floats are gathered as bytes."""
    out.copy_(cache.view(torch.uint8)[pages.long()].view(cache.dtype))
