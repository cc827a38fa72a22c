# SPDX-License-Identifier: Apache-2.0
"""Steps for tests of backends: a random paged batch with its host numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rtp_llm.attention import AttentionConfig, ForwardBatch, HostNumbers
from rtp_llm.testing.paged_batches import PagedBatch, Shape


def shape_of(config: AttentionConfig) -> Shape:
    """The shape of a batch for `config`."""
    return Shape(config.num_heads, config.num_kv_heads, config.head_dim, config.block_size)


def step_of(batch: PagedBatch, groups: int = 1) -> ForwardBatch:
    """A step over `batch`, whose layers (one a group) share its cache and its table."""
    q, cache, cu_seqlens, seq_lens, table, longest, keys, _ = batch.arguments()
    slots = torch.full((len(q),), -1, dtype=torch.int32)  # keys and values are there already
    return ForwardBatch(
        token_ids=slots,
        positions=slots,
        cu_seqlens_q=cu_seqlens,
        seq_lens=seq_lens,
        max_seqlen_q=longest,
        max_seqlen_k=keys,
        slot_mapping=(slots,) * groups,
        block_table=(table,) * groups,
        kv_cache=(cache,) * groups,
        layer_group=tuple(range(groups)),
        host=HostNumbers(
            cu_seqlens.cpu().numpy(), seq_lens.cpu().numpy(), (table.cpu().numpy(),) * groups
        ),
    )


def forget_old_blocks(batch: PagedBatch, window: int) -> None:
    """Remove the blocks from the table that no query of the batch sees within `window`."""
    size = batch.kv_cache.shape[2]
    for row, (queries, keys) in enumerate(batch.lengths):
        batch.block_table[row, : max(0, keys - queries - window + 1) // size] = -1


KINDS: dict[str, Sequence[tuple[int, int]]] = {
    "decode": [(1, 1), (1, 40), (1, 2000), (1, 16), (1, 700)],
    "prompts": [(130, 130), (1, 1), (700, 700), (17, 17)],
    "chunks": [(64, 1000), (300, 317), (33, 2048)],
    "mixed": [(1, 900), (1, 33), (1, 1), (500, 500), (129, 1400), (2, 64)],
}
