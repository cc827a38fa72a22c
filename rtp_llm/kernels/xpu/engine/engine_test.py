# SPDX-License-Identifier: Apache-2.0
"""The whole engine, its operators SYCL kernels, against transformers: whatever the scheduler does,
the tokens are the same."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rtp_llm import ops
from rtp_llm.device import resolve_device
from rtp_llm.device.xpu import BLOCK_SIZE_VARIABLE
from rtp_llm.engine.messages import RequestError
from rtp_llm.testing.engine.grammars import json_case, save_spelling_model, text_of
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.transformers_models import (
    expected_tokens,
    random_prompt,
    save_model,
)
from rtp_llm.testing.xpu.host_backend import BACKEND
from rtp_llm.worker.speculative import methods

SHARED = random_prompt(140, seed=1)
PROMPTS = [[3], [*SHARED, 5, 6], random_prompt(70, seed=2), [*SHARED, 7], random_prompt(17, seed=3)]
STEPS = 24
SHORT: dict[str, Any] = {"max_batch_tokens_size": 512}  # a short warm-up
KINDS: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 1},
    "mistral": {"sliding_window": 40},
    "qwen2": {},
    "qwen3": {"head_dim": 80},
}


@pytest.fixture(autouse=True)
def nothing_is_left_on_a_stream() -> Iterator[None]:
    yield
    assert BACKEND.unjoined() == []


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[list[int]]]]:
    """A folder of each kind, and the tokens that transformers gives after PROMPTS."""
    found = {}
    for kind, sizes in KINDS.items():
        folder = tmp_path_factory.mktemp(kind)
        reference = save_model(folder, kind, seed=7, **sizes)
        found[kind] = folder, [expected_tokens(reference, each, STEPS) for each in PROMPTS]
    return found


def generate(engine: TinyEngine, steps: int = STEPS) -> list[list[int]]:
    """The first two prompts one after the other, then all others together."""
    ids = []
    for number, prompt in enumerate(PROMPTS):
        ids.append(engine.add(prompt, max_tokens=steps, ignore_eos=True))
        if number < 2:
            engine.run()
    engine.run()
    engine.assert_all_free()
    return [engine.outcomes[each, 0].tokens for each in ids]


@pytest.mark.parametrize("kind", KINDS)
def test_whole_prompts_and_a_prefix_that_is_cached(models: Any, kind: str) -> None:
    folder, expected = models[kind]
    calls = ops.kernel_calls("paged_attention")
    engine = TinyEngine(folder, **({} if kind == "llama" else SHORT))
    assert (engine.ready.device, engine.settings.dtype) == ("xpu", "float32")
    assert generate(engine) == expected
    assert engine.engine.stats().prefix_hit_tokens == 128  # two blocks of 64
    assert ops.kernel_calls("paged_attention") > calls


def test_chunks_and_preemption_in_a_small_cache(
    models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BLOCK_SIZE_VARIABLE, "4")
    folder, expected = models["qwen2"]
    engine = TinyEngine(
        folder, kv_cache_mem_mb=1, max_seq_len=180, max_batch_tokens_size=33, reuse_cache=False
    )
    for turn in range(4):
        for prompt in PROMPTS:
            engine.add(prompt, max_tokens=STEPS, ignore_eos=True, key=str(turn))
    engine.run()
    engine.assert_all_free()
    assert [outcome.tokens for outcome in engine.outcomes.values()] == expected * 4
    assert engine.engine.stats().preemptions > 0


@pytest.mark.parametrize("place", ["host", "device"])
def test_drafts_of_ngrams_are_verified(
    models: Any, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(methods, "matches_on_device", lambda *_: place == "device")
    folder, expected = models["qwen3"]
    calls = ops.kernel_calls("match_ngrams"), ops.kernel_calls("append_accepted")
    engine = TinyEngine(folder, **SHORT, speculative="ngram", num_speculative_tokens=3)
    assert generate(engine) == expected
    fixed = engine.tokens([7, 8, 9] * 4, max_tokens=20, ignore_eos=True, logit_bias={5: 100.0})
    assert fixed == [5] * 20
    assert engine.engine.stats().spec_decode_num_accepted_tokens > 10
    later = ops.kernel_calls("match_ngrams"), ops.kernel_calls("append_accepted")
    assert (calls == later) == (place == "host")


def test_samples_beams_and_log_probabilities(models: Any) -> None:
    folder, expected = models["llama"]
    engine = TinyEngine(folder, **SHORT)
    greedy = {"max_tokens": STEPS, "ignore_eos": True}
    scored = engine.add(PROMPTS[2], logprobs=3, prompt_logprobs=1, **greedy)
    seeded = [engine.add(PROMPTS[4], temperature=0.9, seed=3, n=2, max_tokens=9) for _ in range(2)]
    engine.add(PROMPTS[4], repetition_penalty=1.4, no_repeat_ngram_size=2, max_tokens=9)
    engine.run()
    outcome = engine.outcomes[scored, 0]
    assert outcome.tokens == expected[2]
    for entry in outcome.logprobs:
        assert len(entry.top) == 3 and entry.top[0] == (entry.token_id, entry.logprob)
        assert sum(math.exp(value) for _, value in entry.top) < 1 + 1e-4
    assert sorted(outcome.prompt_logprobs) == list(range(1, len(PROMPTS[2])))
    first, second = ([engine.outcomes[each, i].tokens for i in range(2)] for each in seeded)
    assert first == second and first[0] != first[1]


def test_answers_obey_their_grammar(tmp_path: Path) -> None:
    folder = save_spelling_model(tmp_path)
    case = json_case({"type": "array", "items": {"enum": ["red", 7]}, "minItems": 2, "maxItems": 3})
    engine = TinyEngine(folder, **SHORT)
    for seed in range(3):
        engine.add([5, 6], grammar=case.grammar, temperature=1.0, seed=seed, max_tokens=60)
        engine.add([5, 6], temperature=1.0, seed=seed, max_tokens=20)
    engine.run()
    for request in (1, 3, 5):
        assert case.accepts(text_of(folder, engine.outcomes[request, 0].tokens))


def test_an_abort_frees_its_blocks_and_a_wrong_prompt_is_refused(models: Any) -> None:
    engine = TinyEngine(models["llama"][0], **SHORT)
    for _ in range(2):
        engine.add(SHARED, n=2, max_tokens=90, ignore_eos=True)
    for _ in range(5):
        engine.step()
    engine.engine.abort([(request, index) for request in (1, 2) for index in range(2)])
    engine.run()
    engine.assert_all_free()
    with pytest.raises(RequestError, match="token id 100000"):
        engine.add([100_000])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits(models: Any, dtype: str) -> None:
    if dtype == "float16" and not torch.ops.rtp_llm_xpu_bridge.has_float16():
        pytest.skip("the SYCL device has no float16")
    folder, expected = models["qwen3"]
    engine = TinyEngine(folder, **SHORT, dtype=dtype)
    tokens = generate(engine, 4)
    same = sum(
        a == b
        for got, wanted in zip(tokens, expected, strict=True)
        for a, b in zip(got[:4], wanted[:4], strict=True)
    )
    assert same >= 15, "the first tokens are those of float32 but for rounding"


def test_memory_is_that_of_the_tensors() -> None:
    device = resolve_device()
    used = device.memory_used()
    device.reset_peak_memory()
    tensor = torch.empty(3 << 20, dtype=torch.uint8)
    assert device.memory_used() - used >= 3 << 20
    del tensor
    assert device.peak_memory() - device.memory_used() >= 3 << 20
    assert 0 < device.memory_info().free <= device.memory_info().total
    assert device.default_block_size() == 64


def test_streams_and_events_are_real_and_what_nobody_waits_for_is_found() -> None:
    device = resolve_device()
    side = device.new_stream()
    x, weight = torch.randn(4, 64), torch.ones(64)
    with device.use_stream(side):
        assert device.current_stream() is side
        y = ops.rms_norm(x, weight, 1e-6)
    assert BACKEND.unjoined() != []
    device.current_stream().wait_stream(side)
    assert BACKEND.unjoined() == []
    event = device.new_event()
    assert event.query()  # as with torch's: it was never recorded
    event.record()
    event.synchronize()
    assert event.query()
    torch.testing.assert_close(y, ops.rms_norm(x, weight, 1e-6))
