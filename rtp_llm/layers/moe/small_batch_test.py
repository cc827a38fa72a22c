# SPDX-License-Identifier: Apache-2.0
"""A block's few tokens give what its executor and its shared experts give."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from rtp_llm import ops
from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.distributed.tensor_parallel import planned_rank
from rtp_llm.layers import LayerOptions, MoeBlock, MoeConfig, RMSNorm
from rtp_llm.layers.moe.small_batch import MAX_TOKENS, SmallBatch

HIDDEN, INNER = 48, 40
OPTIONS = LayerOptions(ModelSettings(dtype="float32"), torch.device("cpu"))


@pytest.fixture(autouse=True)
def references() -> Iterator[None]:
    """The CPU has kernels of none of these operators."""
    torch.manual_seed(0)
    ops.allow_reference_ops(True)
    yield
    ops.allow_reference_ops(False)


def made(
    shared: int, *, gate: bool = True, k: int = 3, options: LayerOptions = OPTIONS
) -> MoeBlock:
    config = MoeConfig(
        HIDDEN, 8, k, INNER, shared_intermediate_size=shared, shared_gate=bool(shared) and gate
    )
    block = MoeBlock(0, config, options)
    for parameter in block.parameters():
        parameter.data.normal_(std=parameter.shape[-1] ** -0.5)
    return block


@pytest.mark.parametrize(
    ("shared", "gate"), [(0, False), (INNER, True), (INNER, False), (24, True)]
)
def test_small_batches_match_the_block(shared: int, gate: bool) -> None:
    """A shared expert of another width, or without a gate, is computed apart."""
    block = made(shared, gate=gate)
    norm = RMSNorm(HIDDEN, 1e-6, OPTIONS)
    norm.weight.data.uniform_(0.5, 1.5)
    few = SmallBatch(block.gate, block.executor.weights, block.shared, block._divided())
    for tokens in (1, 4, 16, 17, 64):
        residual, pending = torch.randn(2, tokens, HIDDEN)
        expected = residual.clone()
        added = block(norm, expected, pending.clone())
        expected += added
        block.small_batch = few
        assert block(norm, residual, pending) is None
        block.small_batch = None
        torch.testing.assert_close(residual, expected, rtol=1e-4, atol=1e-5)


def test_the_shared_expert_is_one_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weights are read where they are, by the same products: nothing runs for it alone."""
    block = made(INNER)
    calls = []
    gate_up = ops.triton_gate_up
    monkeypatch.setattr(ops, "triton_gate_up", lambda *a: calls.append(a[5]) or gate_up(*a))
    monkeypatch.setattr(block.shared, "add_to", None)
    few = SmallBatch(block.gate, block.executor.weights, block.shared, block._divided())
    few.add_to(torch.zeros(2, HIDDEN), torch.randn(2, HIDDEN))
    assert calls == [block.shared.gate_up_proj.weight]


@pytest.mark.parametrize("shared", [0, INNER, 2 * INNER])
@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_give_parts_of_the_experts_that_they_have(rank: int, shared: int) -> None:
    """What is shared is as wide as a routed expert on every rank, or half so wide, or absent."""
    ranks = replace(planned_rank(2), rank=rank)
    block = made(shared, options=replace(OPTIONS, tensor_parallel=ranks))
    few = SmallBatch(block.gate, block.executor.weights, block.shared, block._divided())
    for tokens in (1, 4, 64):
        x = torch.randn(tokens, HIDDEN)
        expected = block.route(x, *block.gate(x))
        if block.shared is not None:
            expected = block.shared.add_to(expected, x)
        residual = torch.randn(tokens, HIDDEN)
        before = residual.clone()
        part = few.add_to(residual, x)
        assert torch.equal(residual, before)
        torch.testing.assert_close(part, expected, rtol=1e-4, atol=1e-5)


def test_more_tokens_go_through_the_executor() -> None:
    block = made(INNER)
    block.small_batch = SmallBatch(
        block.gate, block.executor.weights, block.shared, block._divided()
    )
    norm = RMSNorm(HIDDEN, 1e-6, OPTIONS)
    norm.weight.data.fill_(1)
    tokens = MAX_TOKENS + 1
    assert block(norm, torch.randn(tokens, HIDDEN), None).shape == (tokens, HIDDEN)


def test_on_the_cpu_the_executor_takes_all() -> None:
    assert made(INNER).small_batch is None
