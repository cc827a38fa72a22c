# SPDX-License-Identifier: Apache-2.0
"""Walks the table of docs/speculation.md: what speculation works with, and what refuses it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher

from rtp_llm import LLM, SamplingParams
from rtp_llm.config.settings import Settings
from rtp_llm.engine.messages import EngineStartError
from rtp_llm.engine.start.start_checks import check_drafts
from rtp_llm.request.beam_search import BeamSearch
from rtp_llm.request.constraints import Thinking
from rtp_llm.testing.engine.drafting_models import WORDS, compare
from rtp_llm.testing.engine.each_token_alone import each_token_alone
from rtp_llm.testing.engine.replays import capture_on_cpu
from rtp_llm.testing.engine.stored_models import STORED
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.model_folders import byte_level, digits
from rtp_llm.testing.models.eagle3_models import save_eagle3_head
from rtp_llm.testing.models.mtp_models import save_mtp_model
from rtp_llm.testing.models.transformers_models import random_prompt, save_model
from rtp_llm.worker.speculative import methods
from rtp_llm.worker.speculative.device_proposer import DeviceProposer

# After a choice of two, three tokens are forced. With --speculative grammar all requests have it.
FORCED = LLMatcher.grammar_from_regex("(0123|4567)+")
PAGE = Path(__file__).parents[2] / "docs" / "speculation.md"


def table() -> dict[tuple[str, str], str]:
    """What the page says, by what is combined and the method."""
    section = PAGE.read_text().split("\n## With what it works\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    (_, *names), _, *rows = [
        [cell.strip().replace("`", "") for cell in line.split("|")[1:-1]] for line in lines
    ]
    return {(row[0], name): cell for row in rows for name, cell in zip(names, row[1:], strict=True)}


TABLE = table()


@dataclass
class Try:
    """A combination: the kind of model (of `mtp`: another one) or the format that it is stored in,
    settings, and what else differs."""

    kind: str = "llama"
    with_mtp: str = "qwen3_5"
    config: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    drafting: dict[str, Any] = field(default_factory=dict)  # settings of the engine with drafts
    options: dict[str, Any] = field(default_factory=dict)
    searches: bool = False
    stored: str = ""
    shows: Callable[[TinyEngine], bool] = lambda engine: True


TIGHT = {"kv_cache_mem_mb": 1, "seq_size_per_block": 4, "max_seq_len": 96}
TRIES = {
    "steps that overlap": Try(settings={"enable_overlap": True}),
    "steps as graphs": Try(),
    "chunked prompts": Try(settings={"max_batch_tokens_size": 16, "seq_size_per_block": 4}),
    "prefix cache": Try(
        settings={"max_batch_tokens_size": 16, "seq_size_per_block": 4},
        shows=lambda engine: engine.engine.stats().prefix_hit_tokens > 0,
    ),
    "preemption": Try(
        settings={**TIGHT, "max_batch_tokens_size": 64, "max_running_requests": 12},
        options={"max_tokens": 60, "n": 2, "temperature": 1.0},
        shows=lambda engine: engine.engine.stats().preemptions > 0,
    ),
    "n above 1": Try(options={"n": 3, "temperature": 1.0, "seed": 5}),
    "speculate: false of a request": Try(),
    "beam searches of requests": Try(searches=True),
    "grammars of requests": Try(options={"grammar": FORCED, "ignore_eos": False}),
    "budgets of thinking": Try(options={"thinking": Thinking(end_ids=(9, 10), budget=7)}),
    "sampled drafts": Try(drafting={"draft_sample_method": "probabilistic"}),
    "full attention": Try(),
    "windows": Try("mistral", config={"sliding_window": 12}),
    "latent attention": Try("deepseek_v3", "deepseek_v3"),
    "experts": Try("qwen3_moe", "qwen3_5_moe"),
    "gated delta nets": Try("qwen3_next", "qwen3_next"),
    "int8 weights": Try(settings={"quantization": "int8"}),
    "int8 products": Try(settings={"quantization": "w8a8_int8"}),
    "FP8 checkpoints": Try(stored="FP8"),
    "GGUF files": Try(stored="GGUF blocks"),
    "int8 checkpoints": Try(stored="int8"),
    "GPTQ checkpoints": Try(stored="integers in groups"),
    "MXFP4 checkpoints": Try(stored="MXFP4"),
    "NVFP4 checkpoints": Try(stored="NVFP4"),
}


@dataclass
class Made:
    """A model's folder and settings of the methods that draft for it."""

    folder: Path
    methods: dict[str, dict[str, Any]]
    plain: dict[str, TinyEngine] = field(default_factory=dict)


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Try, str], Made]]:
    known: dict[str, Made] = {}

    def made(wanted: Try, method: str) -> Made:
        kind = wanted.with_mtp if method == "mtp" else wanted.kind
        key = repr((method == "mtp", kind, wanted.config, wanted.stored))
        if key not in known:
            known[key] = save(tmp_path_factory.mktemp("model"), kind, method == "mtp", wanted)
        return known[key]

    with each_token_alone():  # so that verifying in one step rounds as decoding does
        yield made


def save(folder: Path, kind: str, with_mtp: bool, wanted: Try) -> Made:
    path, sizes = folder / "model", {"vocab_size": WORDS, "eos_token_id": 2, **wanted.config}
    place = path
    if wanted.stored:
        place, target = STORED[wanted.stored].save(path, WORDS, mtp=with_mtp)
    else:
        target = (
            save_mtp_model(path, kind, **sizes)[0] if with_mtp else save_model(path, kind, **sizes)
        )
    if with_mtp:
        drafting: dict[str, dict[str, Any]] = {"mtp": {}}
    else:
        save_eagle3_head(folder / "head", target, draft_vocab_size=WORDS - 2)
        save_model(folder / "draft", "qwen3", seed=5, vocab_size=WORDS, num_hidden_layers=1)
        drafting = {
            "ngram": {},
            "suffix": {},
            "grammar": {},
            "eagle3": {"speculative_model": str(folder / "head")},
            "draft-model": {"speculative_model": str(folder / "draft")},
        }
    digits().save(str(path / "tokenizer.json"))
    return Made(place, {name: {"speculative": name, **each} for name, each in drafting.items()})


def play(engine: TinyEngine, options: dict[str, Any], *, searches: bool = False) -> TinyEngine:
    """Prompts some of which begin alike, arriving between steps, every third without drafts, or
    as a beam search."""
    beams = {"n": 3, "speculate": True, "inputs": {"beam_search": BeamSearch()}}
    while engine.engine.has_idle_work:  # graphs are captured first
        engine.engine.work_idle()
    for number in range(9):
        prompt = [*random_prompt(24, number % 3, WORDS), *random_prompt(3 + number, number, WORDS)]
        params = {"max_tokens": 16, "ignore_eos": True, "speculate": number % 3 < 2, **options}
        engine.add(prompt, **params | (beams if searches and number % 3 == 2 else {}))
        if number % 4 == 3:
            engine.step()
    engine.run()
    engine.assert_all_free()
    return engine


@pytest.mark.parametrize(("row", "method"), [key for key in TABLE if key[0] in TRIES])
def test_a_combination(
    make: Callable[[Try, str], Made], row: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, says = TRIES[row], TABLE[row, method]
    if says == "no such model":
        assert method == "mtp"
        assert row in ("full attention", "windows") or not STORED[wanted.stored].mtp
        return
    overlaps = row == "steps that overlap"
    made, options = make(wanted, method), wanted.options
    if method == "grammar":
        options = {"grammar": FORCED, **options, "ignore_eos": False}
    key, searches = repr((wanted.settings, wanted.searches, options)), wanted.searches
    if key not in made.plain:
        plain = TinyEngine(made.folder, seed=3, **wanted.settings)
        made.plain[key] = play(plain, options, searches=searches)
    if overlaps and says == "on GPUs":
        monkeypatch.setattr(methods, "matches_on_device", lambda settings, device: True)
    counts = capture_on_cpu(monkeypatch) if row == "steps as graphs" else None
    settings = {**wanted.settings, **made.methods[method], **wanted.drafting}
    if says == "refused":
        with pytest.raises(EngineStartError, match="is not supported"):
            TinyEngine(made.folder, **settings)
        return
    engine = play(TinyEngine(made.folder, seed=3, **settings), options, searches=searches)
    compare(engine, made.plain[key])
    assert wanted.shows(engine)
    assert counts is None or sum(counts.values()) > 8
    if overlaps:
        assert isinstance(engine.engine._proposer, DeviceProposer) is (says in ("yes", "on GPUs"))
    for (request, _), outcome in engine.outcomes.items():
        assert request % 3 or not outcome.drafts
    assert sum(outcome.accepted_drafts for outcome in engine.outcomes.values()) > 0


METHODS = [method for row, method in TABLE if row == "chunked prompts"]


@pytest.mark.parametrize("row", ["ranks that share experts", "prefill and decode workers"])
@pytest.mark.parametrize("method", METHODS)
def test_engines_that_work_together(row: str, method: str, tmp_path: Path) -> None:
    """replicas/ranks_drafts_test.py and rtp_llm/disagg/speculation_test.py compare their tokens;
    here that nothing refuses them."""
    assert TABLE[row, method] == "yes"
    head = str(tmp_path) if method in ("eagle3", "draft-model") else ""
    more: dict[str, Any] = {"role": "decode"}
    if row == "ranks that share experts":
        more = {"data_parallel_size": 2}
    settings = Settings(model="m", speculative=method, speculative_model=head, **more)
    check_drafts(settings, DeviceProposer(3), None)
    with pytest.raises(EngineStartError, match="more drafts than recurrent states go back"):
        check_drafts(settings, DeviceProposer(3), 2)


@pytest.mark.usefixtures("forked_processes")
def test_replicas_of_a_dense_model(make: Callable[[Try, str], Made]) -> None:
    """Each has an engine of its own, whatever drafts for it: one method stands for all."""
    assert {TABLE["replicas of a dense model", method] for method in METHODS} == {"yes"}
    made = make(Try(), "eagle3")
    byte_level().save(str(made.folder / "tokenizer.json"))
    options = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    prompts = [random_prompt(9 + seed, seed, WORDS) for seed in range(6)]
    settings = {**made.methods["eagle3"], "data_parallel_size": 2, "kv_cache_mem_mb": 8}
    plain = TinyEngine(made.folder)
    with LLM(made.folder, dtype="float32", num_threads=1, **settings) as llm:
        for prompt, output in zip(
            prompts, llm.generate(prompts, options, use_tqdm=False), strict=True
        ):
            expected = plain.tokens(prompt, max_tokens=24, ignore_eos=True)
            assert output.outputs[0].token_ids == expected


def test_every_row_is_tried() -> None:
    others = {
        "replicas of a dense model",
        "ranks that share experts",
        "prefill and decode workers",
    }
    assert {row for row, _ in TABLE} == {*TRIES, *others}
