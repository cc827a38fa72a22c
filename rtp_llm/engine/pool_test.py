# SPDX-License-Identifier: Apache-2.0
"""Requests that want one vector for their prompt, against transformers' hidden states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import normalize

from rtp_llm.engine.messages import RequestError
from rtp_llm.request.constraints import Grammar
from rtp_llm.request.params import POOLING_TYPES, PoolingParams, PoolingType, ScoringParams
from rtp_llm.testing.engine.replays import capture_on_cpu
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.eagle3_models import save_eagle3_head
from rtp_llm.testing.models.transformers_models import random_prompt, save_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("qwen3")
    return folder, save_model(folder, "qwen3", seed=1)


def add(
    engine: TinyEngine, prompt: list[int], kind: PoolingType = "mean", **params: Any
) -> tuple[int, PoolingParams]:
    wanted = PoolingParams(pooling_type=kind, **{"normalize": False, **params})
    return engine.add_request(prompt, wanted), wanted


def add_all(engine: TinyEngine, prompts: list[list[int]]) -> list[tuple[int, PoolingParams]]:
    """All kinds in turn, among requests that decode."""
    added = []
    for number, prompt in enumerate(prompts):
        engine.add([7, 8, 9] * 4, max_tokens=20, ignore_eos=True, logit_bias={7: 9.0})
        added.append(
            add(
                engine,
                prompt,
                POOLING_TYPES[number % len(POOLING_TYPES)],
                normalize=number % 2 == 1,
            )
        )
        engine.step()
    return added


def assert_pooled(
    engine: TinyEngine, added: tuple[int, PoolingParams], reference: Any, prompt: list[int]
) -> None:
    request, params = added
    outcome = engine.outcomes[request, 0]
    assert (outcome.tokens, outcome.finish, outcome.stop_token) == ([], "stop", None)
    assert outcome.pooled is not None
    with torch.inference_mode():
        states = reference.model(input_ids=torch.tensor([prompt])).last_hidden_state[0]
    weights = torch.arange(1.0, len(states) + 1)
    kinds = {
        "last": states[-1],
        "cls": states[0],
        "mean": states.mean(0),
        "max": states.amax(0),
        "weightedmean": weights @ states / weights.sum(),
    }
    expected = kinds[params.pooling_type or ""]
    expected = normalize(expected, dim=0) if params.normalize else expected
    torch.testing.assert_close(torch.tensor(outcome.pooled), expected, rtol=1e-4, atol=1e-4)


def requests_left(engine: TinyEngine) -> Any:
    return engine.built.worker.prompt_heads["pool"]._requests  # type: ignore[attr-defined]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("chunk", [7, 16, 256])
def test_prompts_in_chunks_among_others(model: tuple[Path, Any], chunk: int, overlap: bool) -> None:
    folder, reference = model
    engine = TinyEngine(
        folder, max_batch_tokens_size=chunk, max_running_requests=6, enable_overlap=overlap
    )
    prompts = [random_prompt(n, seed=n) for n in (1, 5, 16, 17, 40, 90, 1, 33, 64, 2)]
    added = add_all(engine, prompts)
    engine.run()
    for prompt, each in zip(prompts, added, strict=True):
        assert_pooled(engine, each, reference, prompt)
    engine.assert_all_free()
    assert not requests_left(engine)
    stats = engine.engine.stats()
    assert stats.generated_tokens == 20 * len(prompts) and stats.degenerate_rows == 0


def test_a_vector_for_each_token(model: tuple[Path, Any]) -> None:
    folder, reference = model
    engine = TinyEngine(folder, max_batch_tokens_size=16)
    prompts = [random_prompt(length) for length in (40, 3, 1)]
    added = [add(engine, prompt, "all")[0] for prompt in prompts]
    engine.run()
    for request, prompt in zip(added, prompts, strict=True):
        pooled = torch.tensor(engine.outcomes[request, 0].pooled).view(len(prompt), -1)
        with torch.inference_mode():
            states = reference.model(input_ids=torch.tensor([prompt])).last_hidden_state[0]
        torch.testing.assert_close(pooled, states, rtol=1e-4, atol=1e-4)


def test_no_step_is_computed_in_vain(model: tuple[Path, Any]) -> None:
    for overlap in (False, True):
        engine = TinyEngine(model[0], enable_overlap=overlap)
        for length in (5, 9):
            add(engine, random_prompt(length), "last")
        engine.run()
        assert engine.engine.stats().steps == 1
        engine.assert_all_free()


@pytest.mark.parametrize("method", ["ngram", "eagle3"])
def test_in_graphs_and_beside_drafts(
    model: tuple[Path, Any], method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, reference = model
    counts = capture_on_cpu(monkeypatch)
    settings: dict[str, Any] = {"speculative": method}
    if method == "eagle3":
        save_eagle3_head(tmp_path, reference, draft_vocab_size=90)
        settings["speculative_model"] = str(tmp_path)
    engine = TinyEngine(folder, max_batch_tokens_size=32, max_running_requests=6, **settings)
    while engine.engine.has_idle_work:
        engine.engine.work_idle()
    prompts = [random_prompt(length, seed=length) for length in (1, 5, 31, 33, 90)]
    added = add_all(engine, prompts)
    engine.run()
    for prompt, each in zip(prompts, added, strict=True):
        assert_pooled(engine, each, reference, prompt)
    engine.assert_all_free()
    assert sum(count for size, count in counts.items() if size.longest > 4) > 4
    assert engine.engine.stats().spec_decode_num_draft_tokens > 0


def test_only_the_last_token_is_served_by_the_prefix_cache(model: tuple[Path, Any]) -> None:
    folder, reference = model
    engine = TinyEngine(folder)
    prompt = random_prompt(60)
    engine.tokens(prompt, max_tokens=3)
    for kind in POOLING_TYPES:
        request, wanted = add(engine, prompt, kind)
        engine.run()
        assert_pooled(engine, (request, wanted), reference, prompt)
        assert engine.outcomes[request, 0].cached == (48 if kind == "last" else 0)


def test_a_pooled_prompt_serves_others(model: tuple[Path, Any]) -> None:
    engine = TinyEngine(model[0])
    prompt = random_prompt(60)
    expected = engine.tokens(prompt, key="alone", max_tokens=5)
    add(engine, prompt, "last")
    request = engine.add(prompt, max_tokens=5)
    engine.run()
    request = engine.add(prompt, max_tokens=5)
    engine.run()
    assert engine.outcomes[request, 0].cached == 48
    assert engine.outcomes[request, 0].tokens == expected


def test_preempted_prompts_begin_again(model: tuple[Path, Any]) -> None:
    """What was added up before is not counted twice."""
    folder, reference = model
    settings = {"max_running_requests": 1, "max_batch_tokens_size": 16, "reuse_cache": False}
    for kind in POOLING_TYPES:
        engine = TinyEngine(folder, **settings)
        prompt = random_prompt(60)
        added = add(engine, prompt, kind, priority=5)
        engine.step()
        urgent = engine.add(random_prompt(9), max_tokens=2, priority=-5)
        engine.run()
        assert engine.engine.stats().preemptions == 1
        assert engine.outcomes[urgent, 0].finish
        assert_pooled(engine, added, reference, prompt)


def test_many_prompts_in_little_memory(model: tuple[Path, Any]) -> None:
    folder, reference = model
    engine = TinyEngine(
        folder,
        kv_cache_mem_mb=1,
        seq_size_per_block=4,
        max_seq_len=160,
        max_running_requests=24,
        max_batch_tokens_size=40,
        enable_overlap=True,
    )
    for number in range(8):
        engine.add(random_prompt(40, seed=number), max_tokens=90, ignore_eos=True)
    prompts = [random_prompt(50 + number, seed=number) for number in range(12)]
    added = add_all(engine, prompts)
    engine.run()
    assert engine.engine.stats().preemptions > 0
    for prompt, each in zip(prompts, added, strict=True):
        assert_pooled(engine, each, reference, prompt)
    engine.assert_all_free()


def test_a_prompt_as_long_as_the_model_allows(model: tuple[Path, Any]) -> None:
    folder, reference = model
    engine = TinyEngine(folder, max_seq_len=64)
    prompt = random_prompt(64)
    added = add(engine, prompt, "last")
    engine.run()
    assert_pooled(engine, added, reference, prompt)
    with pytest.raises(RequestError, match="65 tokens is longer than the longest sequence of 64"):
        add(engine, random_prompt(65))


@pytest.mark.parametrize("steps", [1, 3])
def test_an_aborted_prompt_has_no_vector(model: tuple[Path, Any], steps: int) -> None:
    engine = TinyEngine(model[0], max_batch_tokens_size=16, enable_overlap=True)
    request, _ = add(engine, random_prompt(60))
    for _ in range(steps):
        engine.step()
    engine.engine.abort([(request, 0)])
    engine.run()
    assert engine.outcomes[request, 0].pooled is None
    assert not requests_left(engine)
    engine.assert_all_free()


@pytest.mark.parametrize("kind", POOLING_TYPES)
def test_states_that_are_not_finite_are_an_error(model: tuple[Path, Any], kind: Any) -> None:
    engine = TinyEngine(model[0])
    weight = engine.built.worker.runner.model.model.embed_tokens.weight
    prompt = [7, *random_prompt(40)]
    with torch.inference_mode():
        weight[7] = torch.nan
    (broken, _), (whole, _) = add(engine, prompt, kind), add(engine, [5, 6, 9], kind)
    engine.run()
    assert engine.outcomes[broken, 0].error == "model_produced_nan"
    assert engine.outcomes[broken, 0].pooled is None
    assert engine.outcomes[whole, 0].pooled is not None
    assert engine.engine.stats().degenerate_rows == 1
    with torch.inference_mode():
        weight[7] = 0.0
    request, _ = add(engine, prompt, "last")
    engine.run()
    assert engine.outcomes[request, 0].cached == 0  # its blocks serve nobody
    assert engine.outcomes[request, 0].pooled is not None
    engine.assert_all_free()


def test_a_request_that_leaves_it_open_gets_the_default(model: tuple[Path, Any]) -> None:
    folder, reference = model
    engine = TinyEngine(folder)
    prompt = random_prompt(9)
    request = engine.add_request(prompt, PoolingParams())
    engine.run()
    default = PoolingParams(pooling_type="last", normalize=True)
    assert_pooled(engine, (request, default), reference, prompt)


def test_scores_alone_cost_no_token(model: tuple[Path, Any]) -> None:
    engine = TinyEngine(model[0], max_batch_tokens_size=16)
    prompt = random_prompt(40)
    sampled = engine.add(prompt, prompt_logprobs=2, max_tokens=1)
    engine.run()
    steps = engine.engine.stats().generated_tokens
    request = engine.add_request(prompt, ScoringParams(prompt_logprobs=2))
    engine.run()
    outcome = engine.outcomes[request, 0]
    assert outcome.prompt_logprobs == engine.outcomes[sampled, 0].prompt_logprobs
    assert (outcome.tokens, outcome.finish) == ([], "stop")
    assert engine.engine.stats().generated_tokens == steps
    engine.assert_all_free()


def test_what_belongs_to_sampled_tokens_is_refused(model: tuple[Path, Any]) -> None:
    engine = TinyEngine(model[0])
    with pytest.raises(RequestError, match="without sampled tokens has no grammar"):
        engine.add_request([5, 6], PoolingParams(), grammar=Grammar(text="start: /a/"))
    with pytest.raises(RequestError, match="without sampled tokens has no grammar"):
        engine.add_request([5, 6], PoolingParams(), [object()])
    with pytest.raises(RequestError, match="the prompt has no tokens"):
        engine.add_request([], PoolingParams())
