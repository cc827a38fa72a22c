# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts against a loop over tokens in float32; the way to experts; who computes."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from rtp_llm import ops
from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.device.capabilities import HOST
from rtp_llm.device.choice import NoChoiceError
from rtp_llm.layers import LayerOptions, MoeBlock, MoeConfig, NotLocal, RMSNorm, weight_targets
from rtp_llm.layers.moe import (
    Dispatched,
    ExpertContext,
    ExpertNames,
    LocalDispatcher,
    choose_executor,
    explain,
)
from rtp_llm.layers.moe.plain import PlainExecutor
from rtp_llm.testing.capabilities import AMPERE, HOPPER, XPU
from rtp_llm.testing.packages import pretend_installed

HIDDEN, INNER = 48, 40
FLOAT32 = ModelSettings(dtype="float32")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def config(experts=8, top_k=2, **settings):
    return MoeConfig(HIDDEN, experts, top_k, INNER, **settings)


def make_block(moe, hooks=None):
    options = LayerOptions(FLOAT32, torch.device("cpu"), experts=hooks)
    block = MoeBlock(0, moe, options)
    for parameter in block.parameters():
        parameter.data.normal_(std=parameter.shape[-1] ** -0.5)
    return block


def norm():
    made = RMSNorm(HIDDEN, 1e-6, LayerOptions(FLOAT32, torch.device("cpu")))
    made.weight.data.uniform_(0.5, 1.5)
    return made


def by_token(block, x, ids, weights):
    """The weighted sum of each token's experts, one after another."""
    out = torch.zeros_like(x)
    for token, (experts, shares) in enumerate(zip(ids.tolist(), weights.tolist(), strict=True)):
        for expert, share in zip(experts, shares, strict=True):
            gate, up = (block.experts.gate_up.weight[expert] @ x[token]).chunk(2)
            out[token] += share * (block.experts.down.weight[expert] @ (functional.silu(gate) * up))
    return out


@pytest.mark.parametrize("experts", [8, 64, 256])
@pytest.mark.parametrize("top_k", [1, 2, 8])
def test_sums_are_those_of_each_token_alone(experts, top_k):
    block = make_block(config(experts, top_k))
    for tokens in (1, 5, 67):
        x = torch.randn(tokens, HIDDEN)
        ids, weights = block.gate(x)
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(tokens))
        expected = by_token(block, x, ids, weights)
        torch.testing.assert_close(block.route(x, ids, weights), expected, rtol=1e-4, atol=1e-5)


def test_all_tokens_to_one_expert_and_none_to_the_rest():
    block = make_block(config())
    x, weights = torch.randn(30, HIDDEN), torch.rand(30, 2)
    ids = torch.tensor([[5, 2]] * 30, dtype=torch.int32)
    expected = by_token(block, x, ids, weights)
    torch.testing.assert_close(block.route(x, ids, weights), expected, rtol=1e-4, atol=1e-5)


def test_a_token_gives_the_same_bits_in_every_batch():
    block = make_block(config(16, 4))
    x = torch.randn(40, HIDDEN)
    together = block.route(x, *block.gate(x))
    for token in (0, 17, 39):
        alone = x[token : token + 1]
        assert torch.equal(block.route(alone, *block.gate(alone))[0], together[token])


def test_what_is_pending_is_added_before_and_shared_experts_after():
    block = make_block(config(shared_intermediate_size=24, shared_gate=True))
    layer_norm, residual, pending = norm(), torch.randn(7, HIDDEN), torch.randn(7, HIDDEN)
    whole = residual + pending
    x = functional.rms_norm(whole, (HIDDEN,), layer_norm.weight, 1e-6)
    gate, up = (x @ block.shared.gate_up_proj.weight.T).chunk(2, dim=-1)
    shared = (functional.silu(gate) * up) @ block.shared.down_proj.weight.T
    shared *= (x @ block.shared.gate.T).sigmoid()
    expected = by_token(block, x, *block.gate(x)) + shared
    actual = block(layer_norm, residual, pending)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(residual, whole)


def test_scores_by_sigmoid_with_a_bias_and_groups():
    settings = {"scoring": "sigmoid", "correction_bias": True, "num_groups": 4, "top_groups": 2}
    block = make_block(config(16, 4, scaling=2.5, **settings))
    x = torch.randn(20, HIDDEN)
    ids, weights = block.gate(x)
    scores = (x @ block.gate.weight.T).sigmoid()
    choice = (scores + block.gate.bias).view(20, 4, 4)
    kept = choice.topk(2).values.sum(dim=-1).topk(2).indices
    assert all(set(row // 4) <= set(ok) for row, ok in zip(ids.numpy(), kept.numpy(), strict=True))
    picked = scores.gather(1, ids.long())
    torch.testing.assert_close(weights, 2.5 * picked / picked.sum(dim=-1, keepdim=True))


class OtherRanks:
    """Experts 2 and 6 are here, 6 twice; others are another process's."""

    name, value, max_rows = "halves", 1, 3
    local_experts = (2, 6, 6)

    def __init__(self):
        self.prepared = []

    def dispatcher(self, index, config):
        return self

    def steps(self, index, config):
        return (lambda ids, weights: ids.fill_(6), lambda ids, weights: weights.mul_(0.5))

    def prepare(self, x, ids, weights):
        self.prepared.append(len(x))
        slots = torch.full_like(ids, -1)
        slots[ids == 2], slots[ids == 6] = 0, 2
        return Dispatched(x, slots, weights, meta="back")

    def finalize(self, dispatched, out):
        assert dispatched.meta == "back"
        return out


def test_hooks_change_the_selection_and_the_way():
    ranks = OtherRanks()
    block = make_block(config(), ranks)
    assert block.experts.gate_up.weight.shape == (3, 2 * INNER, HIDDEN)
    with torch.no_grad():
        for stack in (block.experts.gate_up, block.experts.down):
            stack.weight[1].fill_(torch.nan)  # the copy that nothing is sent to
    layer_norm, x = norm(), torch.randn(4, HIDDEN)
    out = block(layer_norm, x.clone(), None)
    normed = layer_norm(x)
    _, weights = block.gate(normed)
    slots = torch.full((4, 2), 2)
    torch.testing.assert_close(out, by_token(block, normed, slots, 0.5 * weights))
    elsewhere = torch.tensor([[1, 7]], dtype=torch.int32)
    assert not block.route(x[:1], elsewhere, torch.ones(1, 2)).any()


def test_many_rows_are_computed_in_parts_with_the_same_bits():
    block = make_block(config(), OtherRanks())
    calls = []
    execute = block.executor.execute
    block.executor.execute = lambda dispatched: (
        calls.append(len(dispatched.x)) or execute(dispatched)
    )
    x, ids, weights = torch.randn(8, HIDDEN), torch.randint(0, 8, (8, 2)).int(), torch.rand(8, 2)
    parts = block.route(x, ids, weights)
    assert calls == [3, 3, 2]
    block.dispatcher.max_rows = None
    assert torch.equal(parts, block.route(x, ids, weights))
    assert calls[3:] == [8]


def test_without_tokens_the_router_takes_part_all_the_same():
    ranks = OtherRanks()
    block = make_block(config(), ranks)
    block.executor = None  # is not called
    nothing = torch.empty(0, 2, dtype=torch.int32)
    out = block.route(torch.empty(0, HIDDEN), nothing, torch.empty(0, 2))
    assert out.shape == (0, HIDDEN) and ranks.prepared == [0]


def test_names_in_checkpoints():
    names = ExpertNames("block_sparse_moe", gate_proj="w1", up_proj="w3", down_proj="w2")
    block = make_block(config(2, names=names, shared_intermediate_size=8))
    found = [name for name, _ in weight_targets(block, "layers.0.mlp.")]
    inside = "layers.0.block_sparse_moe."
    assert found[0] == f"{inside}gate.weight"
    assert f"{inside}experts.1.w3.weight" in found and f"{inside}experts.0.w2.weight" in found
    assert f"{inside}shared_expert.w1.weight" in found


def test_weights_of_other_processes_are_known_and_not_read():
    block = make_block(config(), OtherRanks())
    targets = {}
    for name, target in weight_targets(block, "mlp."):
        targets.setdefault(name, []).append(target)
    here = targets["mlp.experts.6.down_proj.weight"]
    assert len(here) == 2 and not any(isinstance(target, NotLocal) for target in here)
    (other,) = targets["mlp.experts.3.gate_proj.weight"]
    assert isinstance(other, NotLocal) and other.shape == (INNER, HIDDEN)


def context(**changes):
    given = {
        "capabilities": HOPPER,
        "dtype": torch.bfloat16,
        "weights": "plain",
        "dispatcher": LocalDispatcher.name,
        "slots": 8,
    }
    return ExpertContext(config=changes.pop("config", config()), **{**given, **changes})


@pytest.mark.parametrize(
    ("changes", "triton", "name"),
    [
        ({}, True, "triton"),
        ({"dtype": torch.float16, "capabilities": AMPERE}, True, "triton"),
        ({"dispatcher": "all_to_all", "slots": 2}, True, "triton"),
        ({}, False, "plain"),
        ({"dtype": torch.float32}, True, "plain"),
        ({"config": config(activation="gelu")}, True, "plain"),
        ({"capabilities": HOST, "dtype": torch.float32}, True, "plain"),
        ({"weights": "fp8"}, True, "fp8"),
    ],
)
def test_who_computes(monkeypatch, changes, triton, name):
    monkeypatch.setattr(ops, "has_kernel", lambda operator, device: True)
    pretend_installed(monkeypatch, triton, "triton")
    assert choose_executor(context(**changes)).name == name
    (chosen,) = (
        line for line in explain(context(**changes)).splitlines() if line.endswith(": chosen")
    )
    assert chosen.startswith(f"  {name} (priority")


def test_a_forced_choice_is_taken_or_says_why_not(monkeypatch):
    monkeypatch.setattr(ops, "has_kernel", lambda operator, device: True)
    assert choose_executor(context(), "plain") is PlainExecutor
    assert "  plain (priority 0): chosen by --moe-strategy" in explain(context(), "plain")
    with pytest.raises(NoChoiceError, match=r"triton: its tiles were chosen.*cpu, bfloat16, "):
        choose_executor(context(capabilities=HOST), "triton")
    with pytest.raises(NoChoiceError, match=r"quick is unknown; there are auto, "):
        choose_executor(context(), "quick")


def test_a_device_without_kernels_and_weights_that_nothing_takes_are_explained(monkeypatch):
    monkeypatch.setattr(ops, "has_kernel", lambda operator, device: False)
    with pytest.raises(NoChoiceError, match=r"plain: no kernel of sort_by_expert.* on xpu"):
        choose_executor(context(capabilities=XPU))
    with pytest.raises(NoChoiceError, match=r"int8 weights.*plain: it takes no int8 weights"):
        choose_executor(context(weights="int8"))


def test_references_compute_experts_where_they_are_allowed():
    """No kernels of this library are for that device."""
    there = context(capabilities=XPU)
    with pytest.raises(NoChoiceError, match=r"sum_experts on xpu \(--allow-reference-ops lets"):
        choose_executor(there)
    ops.allow_reference_ops(True)
    try:
        assert choose_executor(there) is PlainExecutor
    finally:
        ops.allow_reference_ops(False)


def test_more_experts_of_a_token_than_there_are():
    with pytest.raises(ValueError, match=r"9 experts of a token .* out of 8"):
        config(8, 9)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"num_groups": 3}, r"8 experts in 3 groups \(n_group\): expected groups of one size"),
        ({"num_groups": 0}, r"8 experts in 0 groups"),
        ({"num_groups": 4, "top_groups": 5}, r"5 groups of a token \(topk_group\) out of 4"),
        ({"num_groups": 4, "top_groups": 0}, r"0 groups of a token"),
        (
            {"num_groups": 4, "top_groups": 1, "top_k": 3},
            r"3 experts of a token \(num_experts_per_tok\) out of 1 groups \(topk_group\) of 2",
        ),
        ({"num_groups": 8, "top_groups": 4, "scoring": "sigmoid"}, r"the best 2 .* and it has 1"),
    ],
)
def test_groups_that_experts_do_not_fit(settings, reason):
    with pytest.raises(ValueError, match=reason):
        config(**settings)


def test_groups_that_experts_fit():
    config(num_groups=4, top_groups=1, top_k=2)
    config(num_groups=8, top_groups=2, group_best=1)
    config(experts=1, top_k=1)
