# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's attention as the engine's backend calls it, planned once, for gpu_attention."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from rtp_llm.attention import AttentionConfig, ForwardBatch, HostNumbers
from rtp_llm.attention.flashinfer import FlashInferBackend
from rtp_llm.attention.paged import PagedAttentionBackend
from rtp_llm.device import Device

_PLANS = 5


@dataclass(frozen=True)
class Planned:
    """A layer of a planned step, and the host's microseconds to plan it and launch it first."""

    run: Callable[[], Tensor]
    plan_us: float


def plan(
    device: Device,
    config: AttentionConfig,
    q: Tensor,
    cache: Tensor,
    index: tuple[Tensor, ...],
    longest: int,
) -> Planned:
    """For queries `q` [T, H, D] over `cache` [2, N, S, Hk, D]; `index`: prefix sums of queries,
    lengths, block table. The first call compiles."""
    backend = _backend(config)
    times = []
    for _ in range(_PLANS):
        step = _step(cache, index, longest)
        device.synchronize()
        began = time.perf_counter()
        backend.forward(q, 0, 0, step)
        times.append(1e6 * (time.perf_counter() - began))
    return Planned(functools.partial(backend.forward, q, 0, 0, step), min(times))


@functools.cache
def _backend(config: AttentionConfig) -> FlashInferBackend:
    return FlashInferBackend(config, PagedAttentionBackend(config))


def _step(cache: Tensor, index: tuple[Tensor, ...], longest: int) -> ForwardBatch:
    cu_seqlens, seq_lens, table = index
    return ForwardBatch(
        token_ids=cu_seqlens,
        positions=cu_seqlens,
        cu_seqlens_q=cu_seqlens,
        seq_lens=seq_lens,
        max_seqlen_q=longest,
        max_seqlen_k=0,
        slot_mapping=(cu_seqlens,),
        block_table=(table,),
        kv_cache=(cache,),
        layer_group=(0,),
        host=HostNumbers(cu_seqlens.cpu().numpy(), seq_lens.cpu().numpy(), (table.cpu().numpy(),)),
    )
