# SPDX-License-Identifier: Apache-2.0
"""The plan of a step over latents leaves the host free: nothing waits, no pageable memory."""

from __future__ import annotations

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from rtp_llm.attention import ForwardBatch, HostNumbers
from rtp_llm.attention.mla_step import EXPANDED_BLOCK, MlaSizes, MlaStep, plan_step

BLOCK = 16


def mixed_batch() -> ForwardBatch:
    """A prompt, a decode, and a prompt with earlier context."""
    queries, keys = (70, 1, 70), np.array([70, 33, 90], dtype=np.int32)
    sums = np.cumsum([0, *queries]).astype(np.int32)
    table = np.arange(18, dtype=np.int32).reshape(3, 6)
    return ForwardBatch(
        token_ids=torch.zeros(141, dtype=torch.int32),
        positions=torch.zeros(141, dtype=torch.int32),
        cu_seqlens_q=torch.tensor(sums),
        seq_lens=torch.tensor(keys),
        max_seqlen_q=70,
        max_seqlen_k=90,
        slot_mapping=(torch.zeros(141, dtype=torch.int32),),
        block_table=(torch.tensor(table),),
        kv_cache=(torch.zeros(1, 18, BLOCK, 1, 576),),
        layer_group=(0,),
        host=HostNumbers(sums, keys, (table,)),
    )


def test_planning_waits_for_nothing() -> None:
    batch, sizes = mixed_batch(), MlaSizes(512, 64, 128, 128)

    def plan() -> MlaStep:
        return plan_step(batch, sizes)

    plan()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as traced:
            step = plan()
            torch.cuda.set_sync_debug_mode("default")  # the end of a trace may wait
    finally:
        torch.cuda.set_sync_debug_mode("default")
    copies = {event.name for event in traced.events() if "HtoD" in event.name}
    assert copies
    assert not [name for name in copies if "Pageable" in name]
    assert step.expanded is not None
    assert step.absorbed is not None
    assert step.expanded.seq_lens.tolist() == [70, 90]
    assert step.expanded.starts.tolist() == [0, 2 * EXPANDED_BLOCK]
    assert step.absorbed.seq_lens.tolist() == [33]
    assert step.absorbed.rows is not None
    assert step.absorbed.rows.tolist() == [70]
