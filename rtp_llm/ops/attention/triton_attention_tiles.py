"""Compiles every tile of triton_paged_attention before the first request needs it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def compile_triton_attention(
    kv_cache: Tensor,
    dtype: torch.dtype,
    num_heads: int,
    scale: float,
    *,
    causal: bool,
    windows: Iterable[int],
    soft_cap: float,
    split_only: bool = False,
) -> None:
    """Run the tiles of prompts and mixed batches, for each window, on a sequence without keys.

    Args:
        kv_cache: [2, N, S, Hk, D], of one layer; nothing is written to it.
        dtype: number type of the queries.
        split_only: only the tiles that split the keys of a sequence.
    """
    from rtp_llm.kernels.triton.attention.paged_attention import paged_attention, prompt_tiles

    kv_heads, head = kv_cache.shape[3:]
    device = kv_cache.device
    qkv = torch.zeros(2, (num_heads + 2 * kv_heads) * head, dtype=dtype, device=device)
    q = qkv[:, : num_heads * head].view(2, num_heads, head)
    cu_seqlens = torch.tensor([0, 2], dtype=torch.int32, device=device)
    nothing = torch.zeros(1, dtype=torch.int32, device=device)
    for window in set(windows):
        for tile in prompt_tiles(num_heads // kv_heads, head, dtype.itemsize):
            if tile.splits > 1 or not split_only:
                paged_attention(
                    q, kv_cache, cu_seqlens, nothing, nothing.view(1, 1), 2, 1, scale, causal,
                    window, soft_cap, tile=tile,
                )  # fmt: skip
