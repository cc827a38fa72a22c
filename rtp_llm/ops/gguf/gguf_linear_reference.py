# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch reference of operators on GGUF blocks, which it leaves as they are in files."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from rtp_llm.ops.gguf.blocks import dequantize
from rtp_llm.ops.gguf.kinds import BLOCK_BYTES


def gguf_linear_reference(
    x: Tensor,
    blocks: Tensor,
    kind: str,
    bias: Tensor | None = None,
    activation_bits: int = 8,
    float_results: bool = False,
) -> Tensor:
    """See rtp_llm.ops.gguf_linear; x is never quantised, and all weights become floats."""
    out = x.float() @ rows_of(blocks, kind).T
    if bias is not None:
        out += bias.float()
    return out if float_results else out.to(x.dtype)


def gguf_grouped_linear_reference(
    x: Tensor,
    blocks: Tensor,
    kind: str,
    offsets: Tensor,
    bias: Tensor | None = None,
    activation_bits: int = 8,
) -> Tensor:
    """See rtp_llm.ops.gguf_grouped_linear; x is never quantised."""
    out = x.new_zeros((len(x), blocks.shape[1]))
    for expert, (start, end) in enumerate(pairwise(offsets.tolist())):
        own = None if bias is None else bias[expert]
        out[start:end] = gguf_linear_reference(x[start:end], blocks[expert], kind, own)
    return out


def gguf_interleave_reference(blocks: Tensor, kind: str) -> None:
    """See rtp_llm.ops.gguf_interleave: the other references take blocks as they are."""


def gguf_embedding_reference(ids: Tensor, blocks: Tensor, kind: str, out: Tensor) -> None:
    """See rtp_llm.ops.gguf_embedding."""
    if not bool(((ids >= 0) & (ids < len(blocks))).all()):
        raise IndexError(f"gguf_embedding: an id is outside the {len(blocks)} rows of the table")
    out.copy_(rows_of(blocks[ids.long()], kind))


def rows_of(blocks: Tensor, kind: str) -> Tensor:
    """float32 [O, K] of blocks int8 [O, bytes of a row]."""
    taken = blocks.view(torch.uint8).view(len(blocks), -1, BLOCK_BYTES[kind])
    return dequantize(kind, taken).flatten(1)
