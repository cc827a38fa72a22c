# SPDX-License-Identifier: Apache-2.0
"""Every operator inside a captured graph: replays take what their inputs hold by then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.ops.gemm.tiled_wna16_layout import pack
from rtp_llm.testing.gpu import captured
from rtp_llm.testing.operator_checks import DEVICE
from rtp_llm.testing.paged_batches import PagedBatch, Shape

HEADS, KV_HEADS, HEAD_DIM, TOKENS = 4, 2, 64, 6
WIDTH = (HEADS + 2 * KV_HEADS) * HEAD_DIM
REPLAYS = 5

# A step reads and writes the tensors that it is given, and returns what it made.
Step = Callable[[dict[str, Tensor]], Any]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def normal(*shape: int) -> Tensor:
    return torch.randn(shape).bfloat16()


def numbers(*shape: int, limit: int) -> Tensor:
    return torch.randint(0, limit, shape, dtype=torch.int32)


def norms(at: dict[str, Tensor]) -> Any:
    ops.fused_add_rms_norm(at["x"], at["residual"], at["weight"], 1e-6)
    ops.qk_rms_norm(at["qkv"], at["head_weight"], at["head_weight"], HEADS, KV_HEADS, 1e-6)
    return ops.rms_norm(at["residual"], at["weight"], 1e-6)


def gates(at: dict[str, Tensor]) -> Any:
    ops.sigmoid_gate(at["residual"], at["x"])
    return ops.silu_and_mul(at["x"]), ops.gelu_and_mul(at["x"], True)


def products(at: dict[str, Tensor]) -> Any:
    ops.substitute_tokens(at["ids"], at["previous"])
    return ops.linear(ops.embedding(at["ids"], at["table"]), at["table"])


def fused_products(at: dict[str, Tensor]) -> Any:
    norm = at["weight"], 1e-6
    gated = ops.norm_gated_linear(at["residual"], *norm, at["wide"], None, "silu")
    ops.linear_add(gated, at["square"], None, at["residual"])
    ops.linear_add(ops.norm_linear(at["residual"], *norm, at["wide"]), at["back"], None, at["x"])
    return ops.linear_float(at["residual"], at["wide"])


def rope(at: dict[str, Tensor]) -> None:
    places = at["kv_cache"], at["slots"]
    ops.rope_kv_write(
        at["qkv"], at["positions"], at["cos_sin"], *places, HEADS, KV_HEADS, HEAD_DIM, True
    )


def experts(at: dict[str, Tensor]) -> Any:
    ids, weights = torch.empty(TOKENS, 3, dtype=torch.int32), torch.empty(TOKENS, 3)
    ops.select_topk(at["logits"], ids, weights, True)
    rows, places, offsets = ops.sort_by_expert(ids, 50)
    y = ops.grouped_linear(ops.embedding(rows // 3, at["x"]), at["stack"], offsets)
    out = ops.sum_experts(y, places, weights)
    ops.add_sigmoid_gated(out, y[: len(out)].contiguous(), at["x"], at["x"][:1].contiguous())
    return ids, out


def few_experts(at: dict[str, Tensor]) -> Any:
    gate = at["wide"][:1].contiguous()
    routed = ops.route_experts(at["logits"], at["x"], gate, 3, True)
    weights, _, places, *_ = routed
    y = at["wide"][:1] * weights.view(-1, 1).bfloat16()
    ops.add_experts(y, places, weights, at["residual"])
    return routed


def fake_experts(at: dict[str, Tensor]) -> Any:
    ids, weights = torch.empty(TOKENS, 4, dtype=torch.int32), torch.empty(TOKENS, 4)
    ops.group_topk(at["logits"], at["logits"][0], ids, weights, num_groups=5, top_groups=2)
    chosen = ids.clone()
    ops.fake_balance_expert(ids, weights, expert_num=50, dp_rank=0, dp_size=1, ep_size=5)
    return chosen, ids


def blocks(at: dict[str, Tensor]) -> None:
    ops.copy_blocks(at["caches"], at["pairs"])


def draws(at: dict[str, Tensor]) -> Any:
    history = at["history"], at["cu_tokens"]
    ones, output_lens = at["ones"], at["output_lens"]
    ops.apply_token_bitmask(at["logits"], at["masks"], at["rows"])
    ops.apply_penalties(at["logits"], *history, output_lens, ones * 2, ones, ones)
    ops.ban_repeated_ngrams(at["logits"], *history, at["sizes"])
    ops.add_logit_bias(at["logits"], at["rows"], at["ids"], at["ones"])
    share = at["ones"] * 0.9
    tokens, status = ops.sample(
        at["logits"], at["ones"], at["top_k"], share, at["ones"] * 0, at["seeds"], at["seeds"]
    )
    return tokens, status, *ops.top_logprobs(at["logits"], tokens, 5)


def ngrams(at: dict[str, Tensor]) -> None:
    outputs, cu_rows = at["pairs"][:3, 0].contiguous(), at["cu_tokens"][:4]
    ops.match_ngrams(at["drafts"], at["histories"], at["lens"], outputs, cu_rows, 1, 3)
    ops.append_accepted(at["histories"], at["lens"], outputs, cu_rows, at["sampled"], at["drafts"])


def rejections(at: dict[str, Tensor]) -> Tensor:
    rejected, cu_rows = at["rejected"], at["cu_tokens"][:4]
    last = ops.accept_drafts(at["sampled"], rejected, at["drafts"], cu_rows, True)
    ops.correct_positions(
        at["positions"],
        at["lens"][:3],
        at["slots"][None],
        at["tables"],
        at["rows"][:4],
        rejected,
        at["ids"][:3],
        4,
    )
    return last


def inputs() -> dict[str, Tensor]:
    """Fresh numbers for every tensor that a step may read."""
    return {
        "x": normal(TOKENS, 128),
        "residual": normal(TOKENS, 128),
        "weight": normal(128),
        "wide": normal(256, 128) / 10,
        "square": normal(128, 128) / 10,
        "back": normal(128, 256) / 10,
        "qkv": normal(TOKENS, WIDTH),
        "stack": normal(50, 32, 128) / 10,
        "head_weight": normal(HEAD_DIM),
        "ids": numbers(TOKENS, limit=60) - 10,
        "previous": numbers(10, limit=50),
        "table": normal(50, 128),
        "positions": numbers(TOKENS, limit=32),
        "cos_sin": torch.randn(32, HEAD_DIM),
        "kv_cache": normal(2, 8, 4, KV_HEADS, HEAD_DIM),
        "slots": torch.randperm(32)[:TOKENS].int() - 2,
        "caches": normal(2, 2, 8, 4, KV_HEADS, HEAD_DIM),
        "pairs": torch.randperm(8).int().reshape(4, 2),
        "logits": torch.randn(TOKENS, 50),
        "masks": torch.full((TOKENS, 2), 0x55555555, dtype=torch.int32),
        "history": numbers(30, limit=50),
        "cu_tokens": torch.arange(0, 35, 5).int(),
        "output_lens": numbers(TOKENS, limit=6).long(),
        "ones": torch.rand(TOKENS) + 1,
        "sizes": torch.full((TOKENS,), 2, dtype=torch.int32),
        "rows": torch.arange(TOKENS).int(),
        "top_k": numbers(TOKENS, limit=40),
        "seeds": torch.randint(0, 2**40, (TOKENS,)),
        "histories": numbers(8, 64, limit=3),
        "lens": numbers(8, limit=50),
        "drafts": numbers(15, limit=3),
        "sampled": numbers(15, limit=3),
        "rejected": numbers(16, limit=3),
        "tables": numbers(1, 3, 8, limit=8),
    }


STEPS = [
    norms,
    gates,
    products,
    fused_products,
    experts,
    few_experts,
    fake_experts,
    rope,
    blocks,
    draws,
    ngrams,
    rejections,
]
NVIDIA_ONLY = {fused_products: "norm_linear", few_experts: "route_experts"}


@pytest.mark.parametrize("step", STEPS)
def test_replay_equals_eager(step: Step) -> None:
    if step in NVIDIA_ONLY and not ops.has_kernel(NVIDIA_ONLY[step], DEVICE):
        pytest.skip("this device fuses nothing")
    captured_inputs = inputs()
    replay, results = captured(lambda: step(captured_inputs))
    for _ in range(REPLAYS):
        fresh = inputs()
        for name, tensor in fresh.items():
            captured_inputs[name].copy_(tensor)
        replay()
        expected = step(fresh)
        for name, tensor in fresh.items():
            assert torch.equal(captured_inputs[name], tensor), name
        torch.testing.assert_close(results, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("rows", [1, 20, 100])
def test_products_with_integers_in_tiles(rows: int) -> None:
    if not ops.has_kernel("tiled_wna16_linear", DEVICE):
        pytest.skip("this device has no such kernels")
    size, bits = 1024, 4
    codes, zeros = (torch.randint(256, (size, n), dtype=torch.uint8) for n in (size // 2, 8))
    packed = pack(codes, torch.rand(size, 8) / 256, zeros % 16, bits)
    norm = torch.ones(size).bfloat16(), 1e-6

    def step(x: Tensor, residual: Tensor) -> Tensor:
        ops.tiled_wna16_add(x, *packed, bits, None, residual)
        return ops.tiled_wna16_linear(residual, *packed, bits, None, "silu", *norm)

    x, residual = normal(rows, size), normal(rows, size)
    replay, result = captured(lambda: step(x, residual))
    for _ in range(REPLAYS):
        fresh = normal(rows, size), normal(rows, size)
        x.copy_(fresh[0])
        residual.copy_(fresh[1])
        replay()
        assert torch.equal(result, step(*fresh))
        assert torch.equal(residual, fresh[1])


@pytest.mark.parametrize("queries", [1, 30])
def test_attention_replays_with_other_lengths_and_tables(queries: int) -> None:
    shape, most = Shape(), 600
    first = PagedBatch.random([(queries, most)] * 3, shape, torch.bfloat16)
    q, cache, cu, lens, table, max_q, max_k, scale = first.arguments()
    replay, out = captured(
        lambda: ops.paged_attention(q, cache, cu, lens, table, max_q, max_k, scale)
    )
    for keys in ((30, 31, 32), (600, 40, 256), (257, 511, 300)):
        batch = PagedBatch.random([(queries, k) for k in keys], shape, torch.bfloat16)
        new_q, new_cache, _, new_lens, new_table, *_ = batch.arguments()
        q.copy_(new_q)
        cache.fill_(torch.nan)
        cache[:, : new_cache.shape[1]] = new_cache
        lens.copy_(new_lens)
        table.fill_(-1)
        table[:, : new_table.shape[1]] = new_table
        replay()
        eager = ops.paged_attention(q, cache, cu, lens, table, max_q, max_k, scale)
        assert torch.equal(out, eager)
        torch.testing.assert_close(out.double(), batch.expected(), rtol=1.6e-2, atol=1.6e-2)
