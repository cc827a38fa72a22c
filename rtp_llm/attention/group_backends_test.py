# SPDX-License-Identifier: Apache-2.0
"""One factory for all families: which groups share a backend, and what a step prepares for each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from rtp_llm.attention import (
    AttentionConfig,
    ForwardBatch,
    GroupBackends,
    HostNumbers,
    MlaBackend,
    MlaConfig,
    together,
)
from rtp_llm.attention.mla_step import MlaStep
from rtp_llm.device.capabilities import HOST

FULL = AttentionConfig(HOST, torch.float32, torch.float32, 4, 2, 64, 4)
MLA = MlaConfig(
    HOST, torch.float32, torch.float32, 4, latent_size=24, rope_size=8, nope_size=12,
    value_size=10, scale=20**-0.5, block_size=4,
)  # fmt: skip


def batch_of(shapes: list[tuple[int, ...]], new: int, keys: int) -> ForwardBatch:
    """One sequence; a layer and a group for each shape of a cache."""
    table = torch.arange(-(-keys // 4), dtype=torch.int32)[None]
    tables = tuple(table + group for group in range(len(shapes)))
    numbers = torch.tensor([0, new], dtype=torch.int32), torch.tensor([keys], dtype=torch.int32)
    return ForwardBatch(
        token_ids=torch.zeros(new, dtype=torch.int32),
        positions=torch.arange(keys - new, keys, dtype=torch.int32),
        cu_seqlens_q=numbers[0],
        seq_lens=numbers[1],
        max_seqlen_q=new,
        max_seqlen_k=keys,
        slot_mapping=(torch.full((new,), -1, dtype=torch.int32),) * len(shapes),
        block_table=tables,
        kv_cache=tuple(torch.zeros(shape) for shape in shapes),
        layer_group=tuple(range(len(shapes))),
        host=HostNumbers(numbers[0].numpy(), numbers[1].numpy(), tuple(t.numpy() for t in tables)),
    )


def test_groups_that_differ_in_windows_share_a_backend() -> None:
    window = replace(FULL, windows=(24,))
    wide = replace(FULL, windows=(512,), head_dim=128)
    made = GroupBackends([FULL, window, wide, None, MLA])
    assert made[0] is made[1] and made[0] is not made[2]
    assert made[3] is None and isinstance(made[4], MlaBackend)
    assert made[0] is not None and made[0].config.windows == (0, 24)
    assert made[2] is not None and made[2].config.windows == (512,)
    assert together([window, None, FULL]) == [made[0].config, None, made[0].config]


def test_a_step_without_anything_to_prepare_is_not_copied() -> None:
    batch = batch_of([(2, 32, 4, 2, 64)], 1, 40)
    assert GroupBackends([FULL]).prepare(batch) is batch


def test_each_group_is_prepared_by_its_own_backend_from_its_own_table() -> None:
    caches = [(2, 32, 4, 2, 64), (1, 32, 4, 1, 32), (1, 32, 4, 1, 32)]
    batch = batch_of(caches, 70, 90)
    prepared = GroupBackends([FULL, MLA, None]).prepare(batch).prepared
    assert prepared[0] is None and prepared[2] is None
    step = prepared[1]
    assert isinstance(step, MlaStep) and step.expanded is not None
    # Tokens of group 1 lie one block further than those of group 0.
    assert np.array_equal(step.expanded.places[:8].numpy(), np.arange(4, 12))


def test_memory_of_long_contexts_is_that_of_the_backend_that_takes_most() -> None:
    assert GroupBackends([FULL]).context_bytes(1000) == 0
    assert GroupBackends([FULL, MLA]).context_bytes(1000) > 1000 * 32 * 4
