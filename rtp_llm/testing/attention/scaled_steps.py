# SPDX-License-Identifier: Apache-2.0
"""Steps over a cache of 8-bit floats whose keys and values need scales."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from rtp_llm.attention import AttentionConfig, CacheScales, ForwardBatch
from rtp_llm.testing.attention.steps import shape_of, step_of
from rtp_llm.testing.paged_batches import PagedBatch

# So large, or so small, that without scales they would be clipped at 448, or round to zero.
KEY, VALUE = 4000.0, 1e-5
# Of stored numbers, so that none of the millions is beyond 448: it would become a NaN here.
_DEVIATION = 60


def cache_scales(device: torch.device) -> CacheScales:
    """The scales of such keys and values."""
    return CacheScales.of(KEY / _DEVIATION, VALUE / _DEVIATION, device)


def scaled_step(
    lengths: list[tuple[int, int]], config: AttentionConfig
) -> tuple[ForwardBatch, Tensor, Tensor]:
    """A step whose new tokens are not in the cache yet, its packed projection [T, (H + 2 Hk) D],
    and attention [T, H, D] over the numbers before they are rounded to 8 bits."""
    batch = PagedBatch.random(lengths, shape_of(config), config.dtype)
    sizes = torch.tensor([KEY, VALUE], dtype=config.dtype).view(2, 1, 1, 1, 1)
    batch = replace(batch, q=batch.q / KEY, kv_cache=batch.kv_cache * sizes)
    places = torch.cat([torch.arange(keys - queries, keys) for queries, keys in lengths])
    rows = torch.repeat_interleave(torch.tensor([queries for queries, _ in lengths]))
    size = config.block_size
    slots = batch.block_table[rows, places // size].long() * size + places % size
    new = batch.kv_cache.flatten(1, 2)[:, slots].transpose(0, 1)  # [T, 2, Hk, D]
    qkv = torch.cat((batch.q.flatten(1), new.flatten(1)), 1)
    scales = cache_scales(qkv.device)
    own = torch.stack((scales.keys, scales.values)).view(2, 1, 1, 1, 1)
    narrow = (batch.kv_cache.float() / own).to(config.kv_dtype)
    narrow.flatten(1, 2).view(torch.uint8)[:, slots] = 0
    step = replace(
        step_of(batch), kv_cache=(narrow,), positions=places.int(), slot_mapping=(slots.int(),)
    )
    return step, qkv, batch.expected()
