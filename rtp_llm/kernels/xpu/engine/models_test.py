# SPDX-License-Identifier: Apache-2.0
"""Engines over SYCL kernels with experts, recurrent states and models that draft."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from example.demo_model.training import data, sums
from rtp_llm import ops
from rtp_llm.config.settings import Settings
from rtp_llm.device import resolve_device
from rtp_llm.engine.messages import EngineStartError
from rtp_llm.engine.ranks.topology_checks import check_topology
from rtp_llm.models.config_reader import read_model_config
from rtp_llm.quantization.int8 import dequantize_rows, quantize_rows
from rtp_llm.request.params import PoolingParams
from rtp_llm.testing.disagg.workers import Pair
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.encoder_models import expected_states, save_encoder
from rtp_llm.testing.models.transformers_models import clear_prompt, random_prompt, save_model

EXAMPLES = Path(__file__).parents[4] / "example"
DEMO = EXAMPLES / "demo_model"
STEPS = 10
# No long warm-up.
SMALL: dict[str, Any] = {"max_seq_len": 256, "max_batch_tokens_size": 256, "kv_cache_mem_mb": 32}
EXPERTS = ("select_topk", "sort_by_expert", "grouped_linear", "sum_experts")
LATENTS = ("mla_rotate_and_store", "mla_attention", "group_topk")
STATES = ("causal_conv1d", "gated_delta_rule")
KINDS = {
    "deepseek_v3": (*EXPERTS[1:], *LATENTS),
    "qwen3_moe": EXPERTS,
    "qwen3_next": (*EXPERTS, *STATES),
}


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_prefixes_and_drafts_change_nothing(kind: str, tmp_path: Path) -> None:
    reference = save_model(tmp_path, kind, seed=7)
    inputs = [clear_prompt(reference, length, STEPS) for length in (1, 90, 7)]
    calls = {name: ops.kernel_calls(name) for name in KINDS[kind]}
    for settings in ({}, {"speculative": "ngram", "num_speculative_tokens": 3}):
        engine = TinyEngine(tmp_path, max_batch_tokens_size=64, kv_cache_mem_mb=16, **settings)
        for _ in range(2):  # the second time from the prefix cache
            ids = [engine.add(prompt, max_tokens=STEPS, ignore_eos=True) for prompt, _ in inputs]
            engine.run()
            found = [engine.outcomes[each, 0].tokens for each in ids]
            assert found == [expected for _, expected in inputs]
        engine.assert_all_free()
        assert engine.engine.stats().prefix_hit_tokens == 64
    assert all(ops.kernel_calls(name) > count for name, count in calls.items())


@pytest.mark.parametrize(
    ("folder", "drafting"),
    [
        (EXAMPLES / "demo_hybrid_model", {"speculative": "mtp"}),
        (DEMO, {"speculative": "eagle3", "speculative_model": str(EXAMPLES / "demo_draft_head")}),
    ],
    ids=["hybrid with its MTP layer", "dense with an EAGLE-3 head"],
)
def test_the_demos_draft_what_they_would_say(folder: Path, drafting: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    pairs = sums.held_out_sums(4)
    prompts = [data.prompt_ids(tokenizer, sums.question(*pair)) for pair in pairs]
    answers = []
    for settings in ({}, {"num_speculative_tokens": 3, **drafting}):
        engine = TinyEngine(folder, **SMALL, **settings)
        ids = [engine.add(prompt, max_tokens=32) for prompt in prompts]
        engine.run()
        engine.assert_all_free()
        answers.append([engine.outcomes[each, 0].tokens for each in ids])
    assert answers[0] == answers[1]
    stats = engine.engine.stats()
    assert stats.spec_decode_num_accepted_tokens > stats.spec_decode_num_drafts


def test_sampled_drafts_of_the_model_itself_are_accepted(tmp_path: Path) -> None:
    """p = q: only the rounding of batches of other sizes tells the two apart."""
    reference = save_model(tmp_path, "llama", seed=7)
    prompt, expected = clear_prompt(reference, 9, STEPS)
    draws = []
    for _ in range(2):
        engine = TinyEngine(
            tmp_path,
            **SMALL,
            speculative="draft-model",
            speculative_model=str(tmp_path),
            draft_sample_method="probabilistic",
        )
        calls = ops.kernel_calls("rejection_sample")
        greedy = engine.add(prompt, max_tokens=STEPS, ignore_eos=True)
        sampled = [
            engine.add(prompt, temperature=each, seed=5, n=3, max_tokens=20, ignore_eos=True)
            for each in (0.5, 1.0, 2.0)
        ]
        engine.run()
        engine.assert_all_free()
        assert ops.kernel_calls("rejection_sample") > calls
        assert engine.outcomes[greedy, 0].tokens == expected
        outcomes = [engine.outcomes[each, i] for each in sampled for i in range(3)]
        drafts = sum(outcome.drafts for outcome in outcomes)
        accepted = sum(outcome.accepted_drafts for outcome in outcomes)
        assert drafts > 80 and accepted >= drafts - 2
        draws.append([outcome.tokens for outcome in outcomes])
    assert draws[0] == draws[1]
    assert len({tuple(tokens) for tokens in draws[0]}) > 6


def test_int8_weights_give_the_tokens_of_their_rounding(tmp_path: Path) -> None:
    reference = save_model(tmp_path, "qwen3", seed=7)
    with torch.no_grad():
        for module in reference.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight.copy_(dequantize_rows(*quantize_rows(module.weight)))
    inputs = [clear_prompt(reference, length, STEPS) for length in (5, 70)]
    calls = ops.kernel_calls("int8_linear")
    engine = TinyEngine(tmp_path, max_batch_tokens_size=64, quantization="int8")
    ids = [engine.add(prompt, max_tokens=STEPS, ignore_eos=True) for prompt, _ in inputs]
    engine.run()
    assert [engine.outcomes[each, 0].tokens for each in ids] == [tokens for _, tokens in inputs]
    assert ops.kernel_calls("int8_linear") > calls
    rounded = TinyEngine(tmp_path, max_batch_tokens_size=64, quantization="w8a8_int8")
    assert len(rounded.tokens(inputs[0][0], max_tokens=STEPS, ignore_eos=True)) == STEPS
    assert ops.kernel_calls("w8a8_int8_linear") > 0


@pytest.mark.parametrize("kind", ["bert", "gemma3", "modernbert"])
def test_vectors_of_encoders_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    reference = save_encoder(tmp_path, kind)
    engine = TinyEngine(tmp_path)
    prompts = [random_prompt(length, seed=length) for length in (1, 90, 33)]
    params = PoolingParams(pooling_type="mean", normalize=False)
    ids = [engine.add_request(prompt, params) for prompt in prompts]
    engine.run()
    for request, prompt in zip(ids, prompts, strict=True):
        wanted = expected_states(reference, prompt).mean(0)
        found = torch.tensor(engine.outcomes[request, 0].pooled)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_experts_on_several_ranks_need_the_collectives_of_the_device(tmp_path: Path) -> None:
    """The CPU's PyTorch has none for XPUs."""
    save_model(tmp_path, "qwen3_moe")
    settings = Settings(model=str(tmp_path), data_parallel_size=2, **SMALL)
    config = read_model_config(settings.model)
    with pytest.raises(
        EngineStartError, match=r"collectives is not .* xpu.* was built without xccl"
    ):
        check_topology(settings, config, resolve_device())
    one = Settings(model=str(tmp_path), **SMALL)
    check_topology(one, config, resolve_device())


def test_blocks_of_a_prefill_worker_reach_a_decode_worker(tmp_path: Path) -> None:
    reference = save_model(tmp_path, "llama", seed=7)
    prompt, expected = clear_prompt(reference, 90, STEPS)
    pair = Pair(tmp_path, max_batch_tokens_size=64)
    assert pair.tokens(prompt, max_tokens=STEPS, ignore_eos=True) == expected
    assert pair.decode.transfers()["delivered"] == 1
    pair.settle()
    pair.close()
