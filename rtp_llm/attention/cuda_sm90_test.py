# SPDX-License-Identifier: Apache-2.0
"""Tests of which steps Hopper's kernel for prompts leaves to Triton; no kernel runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rtp_llm import ops
from rtp_llm.attention import AttentionConfig
from rtp_llm.attention.cuda_sm90 import CudaSm90Backend
from rtp_llm.testing.capabilities import HOPPER

# 32 heads over 8 KV heads of 128, as Qwen3-8B has.
CONFIG = AttentionConfig(HOPPER, torch.bfloat16, torch.bfloat16, 32, 8, 128, 16)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The kernel that a step of some sequences takes."""
    taken: list[str] = []
    monkeypatch.setattr(ops, "paged_attention", lambda *_, **__: taken.append("cuda_sm90"))
    backend: Any = CudaSm90Backend(CONFIG)

    def choose(sequences: int, queries: int, keys: int, *, has_triton: bool = True) -> str:
        backend._has_triton = has_triton
        backend._attend = lambda *_, **__: taken.append("triton")
        batch: Any = SimpleNamespace(
            seq_lens=torch.zeros(sequences),
            cu_seqlens_q=None,
            block_table=(None,),
            layer_group=(0,),
            kv_cache=(None,),
            max_seqlen_q=queries,
            max_seqlen_k=keys,
        )
        backend.forward(torch.zeros(1), 0, 0, batch)
        return taken.pop()

    return choose


def test_single_tokens_go_to_triton(kernel: Any) -> None:
    assert kernel(1, 1, 64) == kernel(256, 1, 32768) == "triton"


@pytest.mark.parametrize("sequences", [1, 4])
@pytest.mark.parametrize("queries", [2, 4, 16])
def test_a_few_tokens_of_few_sequences_have_their_keys_split(
    kernel: Any, sequences: int, queries: int
) -> None:
    assert kernel(sequences, queries, 1024) == "triton"
    assert kernel(sequences, queries, 1023) == "cuda_sm90", "nothing is worth a split"
    assert kernel(sequences, queries, 32768, has_triton=False) == "cuda_sm90"


def test_more_rows_or_sequences_fill_the_gpu(kernel: Any) -> None:
    assert kernel(1, 17, 32768) == "cuda_sm90", "more rows than the narrow tile has"
    assert kernel(5, 4, 32768) == "cuda_sm90"
    assert kernel(1, 1024, 32768) == "cuda_sm90"
