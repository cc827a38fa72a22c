# SPDX-License-Identifier: Apache-2.0
"""Means of prompts' hidden states, against transformers'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rtp_llm.engine.messages import RequestError
from rtp_llm.testing.eagle3_models import save_eagle3_head
from rtp_llm.testing.engine.replays import capture_on_cpu
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.transformers_models import random_prompt, save_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("qwen3")
    return folder, save_model(folder, "qwen3", seed=1)


def add(engine: TinyEngine, prompt: list[int], **params: Any) -> int:
    return engine.add(prompt, pooling="mean", **{"max_tokens": 1, **params})


def assert_mean(engine: TinyEngine, request: int, reference: Any, prompt: list[int]) -> None:
    (values,) = engine.outcomes[request, 0].pooled
    with torch.inference_mode():
        states = reference.model(input_ids=torch.tensor([prompt])).last_hidden_state[0]
    torch.testing.assert_close(torch.tensor(values), states.mean(0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("chunk", [7, 16, 256])
def test_prompts_in_chunks_among_others(model: tuple[Path, Any], chunk: int, overlap: bool) -> None:
    folder, reference = model
    engine = TinyEngine(
        folder, max_batch_tokens_size=chunk, max_running_requests=6, enable_overlap=overlap
    )
    prompts = [random_prompt(length, seed=length) for length in (1, 5, 16, 17, 40, 90)]
    requests = []
    for prompt in prompts:
        engine.add(random_prompt(12), max_tokens=9, ignore_eos=True)
        requests.append(add(engine, prompt, max_tokens=1 + len(prompt) % 3))
        engine.step()
    engine.run()
    for prompt, request in zip(prompts, requests, strict=True):
        assert_mean(engine, request, reference, prompt)
    engine.assert_all_free()
    assert not engine.built.worker.pooler._wishes


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
    requests = []
    for prompt in prompts:
        engine.add([7, 8, 9] * 4, max_tokens=20, ignore_eos=True, logit_bias={7: 9.0})
        requests.append(add(engine, prompt, max_tokens=1 + len(prompt) % 3))
        engine.step()
    engine.run()
    for prompt, request in zip(prompts, requests, strict=True):
        assert_mean(engine, request, reference, prompt)
    engine.assert_all_free()
    assert sum(count for size, count in counts.items() if size.longest > 4) > 4
    assert engine.engine.stats().spec_decode_num_draft_tokens > 0


def test_the_prefix_cache_is_left_aside(model: tuple[Path, Any]) -> None:
    folder, reference = model
    engine = TinyEngine(folder)
    prompt = random_prompt(60)
    for _ in range(2):
        engine.tokens(prompt, max_tokens=3)
    assert engine.outcomes[2, 0].cached > 0
    for _ in range(2):
        request = add(engine, prompt)
        engine.run()
        assert_mean(engine, request, reference, prompt)
        assert engine.outcomes[request, 0].cached == 0


def test_preempted_prompts_begin_again(model: tuple[Path, Any]) -> None:
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
    prompts = [random_prompt(50 + number, seed=number) for number in range(24)]
    requests = [add(engine, prompt, max_tokens=60, ignore_eos=True) for prompt in prompts]
    engine.run()
    assert engine.engine.stats().preemptions > 0
    for prompt, request in zip(prompts, requests, strict=True):
        assert_mean(engine, request, reference, prompt)
    engine.assert_all_free()


def test_a_prompt_that_was_preempted_halfway_begins_again(model: tuple[Path, Any]) -> None:
    """What was added up before is not counted twice."""
    folder, reference = model
    engine = TinyEngine(folder, max_running_requests=1, max_batch_tokens_size=16, reuse_cache=False)
    prompt = random_prompt(60)
    request = add(engine, prompt, priority=5)
    engine.step()
    urgent = engine.add(random_prompt(9), max_tokens=2, priority=-5)
    engine.run()
    assert engine.engine.stats().preemptions == 1
    assert engine.outcomes[urgent, 0].finish
    assert_mean(engine, request, reference, prompt)


@pytest.mark.parametrize("steps", [1, 3])
def test_an_aborted_prompt_has_no_vector(model: tuple[Path, Any], steps: int) -> None:
    engine = TinyEngine(model[0], max_batch_tokens_size=16, enable_overlap=True)
    request = add(engine, random_prompt(60), max_tokens=9, ignore_eos=True)
    for _ in range(steps):
        engine.step()
    engine.engine.abort([(request, 0)])
    engine.run()
    assert not engine.outcomes[request, 0].pooled
    assert not engine.built.worker.pooler._wishes
    engine.assert_all_free()


def test_states_that_are_not_finite_are_an_error(model: tuple[Path, Any]) -> None:
    engine = TinyEngine(model[0])
    weight = engine.built.worker.runner.model.model.embed_tokens.weight
    with torch.inference_mode():
        weight[7] = torch.nan
    broken, whole = add(engine, [5, 7, 9]), add(engine, [5, 6, 9])
    engine.run()
    assert engine.outcomes[broken, 0].error == "model_produced_nan"
    assert not engine.outcomes[broken, 0].pooled
    assert len(engine.outcomes[whole, 0].pooled) == 1


def test_several_sequences_have_no_vector(model: tuple[Path, Any]) -> None:
    engine = TinyEngine(model[0])
    with pytest.raises(RequestError, match=r"pooling=mean gives one vector for n=2 .* set n=1"):
        add(engine, [5, 6], n=2)
