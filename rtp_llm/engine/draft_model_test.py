# SPDX-License-Identifier: Apache-2.0
"""Draft models: one that is the model itself is always right, wherever its keys come from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rtp_llm.config.settings import Settings
from rtp_llm.device import resolve_device
from rtp_llm.engine.start.memory_estimate import estimate_plan, explain_cache
from rtp_llm.engine.start.memory_plan import weight_bytes
from rtp_llm.loader import CheckpointError, explain
from rtp_llm.models.causal_lm import CausalLM
from rtp_llm.models.refusals import UnsupportedModelError
from rtp_llm.testing.engine.each_token_alone import each_token_alone
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.open_model import model_settings, open_model
from rtp_llm.testing.models.transformers_models import random_prompt, save_model

WORDS = 29


@pytest.fixture(scope="module", params=["llama", "deepseek_v3"])
def itself(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a model that drafts for itself."""
    folder = tmp_path_factory.mktemp("model")
    save_model(folder, request.param, vocab_size=WORDS)
    with each_token_alone():
        yield folder


def drafting(folder: Path, draft: Path, **settings: Any) -> TinyEngine:
    chosen = {"speculative": "draft-model", "speculative_model": str(draft)}
    return TinyEngine(folder, **{**chosen, "num_speculative_tokens": 3, **settings})


def assert_always_right(engine: TinyEngine) -> None:
    engine.assert_all_free()
    for key, outcome in engine.outcomes.items():
        assert outcome.finish == "length" and outcome.drafts > 0, key
        assert outcome.accepted_drafts == outcome.drafts, key


@pytest.mark.parametrize("count", [1, 3, 7])
def test_each_step_gives_all_drafts_and_one_token(itself: Path, count: int) -> None:
    engine = drafting(itself, itself, num_speculative_tokens=count)
    engine.tokens(random_prompt(21, 1, WORDS), max_tokens=1 + 6 * (count + 1), ignore_eos=True)
    assert_always_right(engine)
    stats = engine.engine.stats()
    assert stats.spec_decode_num_drafts == 6
    assert stats.spec_decode_accepted_per_pos == (6,) * count


@pytest.mark.parametrize(("count", "overlap"), [(1, False), (3, False), (3, True)])
def test_a_step_takes_as_many_forwards_as_drafts(
    itself: Path, count: int, overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = drafting(itself, itself, num_speculative_tokens=count, enable_overlap=overlap)
    runner = engine.built.worker.runner
    events: list[str] = []

    def noting(what: str, original: Any) -> Any:
        def call(*arguments: Any) -> Any:
            events.append(what)
            return original(*arguments)

        return call

    monkeypatch.setattr(runner.model, "draft", noting("d", runner.model.draft))
    monkeypatch.setattr(runner, "forward", noting("m", runner.forward))
    engine.tokens(random_prompt(20, 1, WORDS), max_tokens=1 + 4 * (count + 1), ignore_eos=True)
    assert_always_right(engine)
    assert "".join(events) == "dm" + 4 * (count * "d" + "m")


@pytest.mark.parametrize("overlap", [False, True])
def test_who_finds_a_last_draft_in_the_prefix_cache_computes_it(
    itself: Path, overlap: bool
) -> None:
    """Nobody has computed it yet: the sequence ended with it, at the end of a block."""
    engine = drafting(itself, itself, seq_size_per_block=4, enable_overlap=overlap)
    for memory in engine.built.worker.runner.cache.memory:
        memory.view(torch.uint8).fill_(0x7F)  # so large that nobody overlooks what is not written
    prompt = random_prompt(20, 7, WORDS)
    whole = prompt + engine.tokens(prompt, max_tokens=9, ignore_eos=True)
    for more in (1, 4, 6):
        engine.add(whole + random_prompt(more, more, WORDS), ignore_eos=True)
        engine.run()
    assert_always_right(engine)
    assert [each.cached for each in engine.outcomes.values()] == [0, 28, 28, 28]


@pytest.mark.parametrize("overlap", [False, True])
def test_prefix_hits_and_chunks_have_the_right_keys(itself: Path, overlap: bool) -> None:
    engine = drafting(
        itself,
        itself,
        enable_overlap=overlap,
        seq_size_per_block=4,
        max_batch_tokens_size=16,
        max_running_requests=6,
    )
    prompt = random_prompt(50, 2, WORDS)
    first = engine.tokens(prompt, max_tokens=18, ignore_eos=True)
    for length in (7, 16, 33, 50):
        engine.add([*prompt[:length], *random_prompt(5, length, WORDS)], ignore_eos=True)
        engine.step()
    engine.add(prompt + first, ignore_eos=True)  # what drafts wrote is found, too
    engine.run()
    assert_always_right(engine)
    assert [outcome.cached > 0 for outcome in engine.outcomes.values()] == [False, *[True] * 5]


def test_forks_go_on_from_a_copy(itself: Path) -> None:
    engine = drafting(itself, itself, seq_size_per_block=16, enable_overlap=True)
    for length in (9, 16, 27):
        engine.add(random_prompt(length, length, WORDS), n=3, ignore_eos=True, max_tokens=14)
    engine.run()
    assert_always_right(engine)


def test_preemption_loses_nothing(itself: Path) -> None:
    engine = drafting(
        itself,
        itself,
        seq_size_per_block=4,
        max_seq_len=120,
        kv_cache_mem_mb=1,
        max_running_requests=12,
        enable_overlap=True,
    )
    for number in range(12):
        prompt = random_prompt(20 + number, number, WORDS)
        engine.add(prompt, ignore_eos=True, max_tokens=80)
        engine.step()
    engine.run()
    assert_always_right(engine)
    assert engine.engine.stats().preemptions > 0


def test_a_request_may_do_without(itself: Path) -> None:
    engine = drafting(itself, itself)
    prompt = random_prompt(20, 3, WORDS)
    without = engine.add(prompt, ignore_eos=True, speculate=False)
    engine.run()
    engine.add(prompt, ignore_eos=True)
    engine.run()
    assert engine.outcomes.pop((without, 0)).drafts == 0
    assert_always_right(engine)


def small(folder: Path, kind: str = "llama", **settings: Any) -> Path:
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    save_model(folder, kind, **{**sizes, "vocab_size": WORDS, **settings})
    return folder


def kept(model: CausalLM) -> int:
    """Bytes of its weights; models may share the tables of their positions."""
    return sum(each.nbytes for each in model.parameters())


def test_weights_are_kept_as_each_folder_has_them(tmp_path: Path) -> None:
    target, draft = small(tmp_path / "target", "qwen3"), small(tmp_path / "draft")
    alone, other = open_model(target, quantization="int8"), open_model(draft)
    both = open_model(target, draft_model=str(draft), quantization="int8")
    assert kept(alone) < kept(open_model(target))
    assert kept(both) == kept(alone) + kept(other) <= weight_bytes(both)


def test_explain_and_the_plan_count_the_draft_model(tmp_path: Path) -> None:
    target, draft = tmp_path / "target", small(tmp_path / "draft", "qwen3", head_dim=32)
    save_model(target, "llama", vocab_size=WORDS)
    device, own = resolve_device("cpu"), model_settings()
    text = explain(target, device=device, settings=own, draft_model=str(draft))
    # Keys and values of one head of 32 in float32, plus three layers with two heads of 64.
    assert "KV cache: 3328 bytes per token, 256 of them for the draft model" in text
    assert "\ndraft model: Qwen3ForCausalLM, 1 layers, context 256 (at most 256)\n" in text
    assert text.count("attention") > explain(target, device=device, settings=own).count("attention")
    chosen = {"speculative": "draft-model", "speculative_model": str(draft)}
    common = {"model": str(target), "dtype": "float32", "kv_cache_mem_mb": 4}
    settings, plain = Settings(**common, **chosen), Settings(**common)
    shape, plan = estimate_plan(settings, device)
    assert [len(group.layers) for group in shape.groups] == [3, 1]
    assert plan.full_blocks < estimate_plan(plain, device)[1].full_blocks
    assert "1 layer of full attention, 1 KV heads of 32" in explain_cache(settings, device)
    engine = TinyEngine(target, **chosen, kv_cache_mem_mb=4)
    assert engine.ready.num_blocks == plan.full_blocks
    assert engine.ready.kv_cache_bytes == plan.bytes


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    target, draft = small(tmp_path / "target"), small(tmp_path / "draft", vocab_size=WORDS + 1)
    with pytest.raises(
        UnsupportedModelError, match=r"same numbers.*vocab_size is 30 in .*, and 29"
    ):
        drafting(target, draft)


def test_other_tokens_are_refused(tmp_path: Path) -> None:
    folders = small(tmp_path / "target"), small(tmp_path / "draft")
    for number, folder in enumerate(folders):
        tokens = {"model": {"vocab": {"a": number, "b": 1 - number}}}
        (folder / "tokenizer.json").write_text(json.dumps(tokens))
    with pytest.raises(UnsupportedModelError, match=r"same numbers.*tokenizer\.json in "):
        drafting(*folders)
    (folders[0] / "tokenizer.json").write_text((folders[1] / "tokenizer.json").read_text())
    drafting(*folders)


def test_recurrent_layers_are_refused(tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    save_model(draft, "qwen3_5", vocab_size=WORDS)
    with pytest.raises(UnsupportedModelError, match=r"draft model with recurrent layers.*Qwen3_5"):
        drafting(small(tmp_path / "target"), draft)


def test_the_folder_at_fault_is_named(tmp_path: Path) -> None:
    target, draft = small(tmp_path / "target"), small(tmp_path / "draft")
    (draft / "model.safetensors").rename(draft / "weights")
    with pytest.raises(CheckpointError, match=str(draft)):
        drafting(target, draft)
    config = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps({**config, "architectures": ["Gpt7"]}))
    with pytest.raises(UnsupportedModelError, match=f"^--speculative-model {draft}: Gpt7"):
        drafting(target, draft)


def test_a_draft_model_of_fewer_positions_drafts_behind_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target, draft = small(tmp_path / "target"), small(tmp_path / "d", max_position_embeddings=32)
    engine = drafting(target, draft)
    assert "made for 32 positions" in caplog.text
    prompt = random_prompt(60, 1, WORDS)
    with_drafts = engine.tokens(prompt, ignore_eos=True)
    assert with_drafts == TinyEngine(target).tokens(prompt, ignore_eos=True)
    assert engine.outcomes[1, 0].drafts > 0
