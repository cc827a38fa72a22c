# SPDX-License-Identifier: Apache-2.0
"""Walks the table of docs/formats.md: what stored formats work with, and what refuses them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from llguidance import LLMatcher

from rtp_llm import ops
from rtp_llm.device.xpu import XpuDevice
from rtp_llm.engine.messages import EngineStartError
from rtp_llm.loader.checkpoint import Checkpoint
from rtp_llm.loader.stored_formats import stored_formats, why_dequantized
from rtp_llm.models.config import UnsupportedModelError
from rtp_llm.models.config_reader import read_model_config
from rtp_llm.testing.capabilities import XPU_KERNELS
from rtp_llm.testing.disagg.workers import Pair
from rtp_llm.testing.engine.drafting_models import WORDS, accepted, compare
from rtp_llm.testing.engine.each_token_alone import each_token_alone
from rtp_llm.testing.engine.replays import capture_on_cpu
from rtp_llm.testing.engine.stored_models import STORED
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.fake_torch import FakeTorch
from rtp_llm.testing.models.transformers_models import random_prompt

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"


def table() -> dict[tuple[str, str], str]:
    """What the page says, by what is combined and the format."""
    section = PAGE.read_text().split("\n## With what they work\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    (_, *names), _, *rows = [
        [cell.strip().replace("`", "") for cell in line.split("|")[1:-1]] for line in lines
    ]
    return {(row[0], name): cell for row in rows for name, cell in zip(names, row[1:], strict=True)}


TABLE = table()
SMALL_STEPS = {"max_batch_tokens_size": 16, "seq_size_per_block": 4}
TIGHT = {"kv_cache_mem_mb": 1, "seq_size_per_block": 4, "max_seq_len": 96}


@dataclass
class Try:
    """Settings of both engines, of the one that has more than the other, and of requests."""

    settings: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    shows: Callable[[TinyEngine], bool] = lambda engine: True


TRIES = {
    "grammars": Try(
        more={"speculative": "grammar"},
        options={"grammar": LLMatcher.grammar_from_regex("(0123|4567)+"), "ignore_eos": False},
        shows=lambda engine: accepted(engine) > 0,
    ),
    "chunked prompts, prefix cache": Try(
        more=SMALL_STEPS, shows=lambda engine: engine.engine.stats().prefix_hit_tokens > 0
    ),
    "preemption": Try(
        {**TIGHT, "max_batch_tokens_size": 64, "max_running_requests": 12},
        options={"max_tokens": 60, "n": 2, "temperature": 1.0},
        shows=lambda engine: engine.engine.stats().preemptions > 0,
    ),
    "steps as graphs": Try(),
    "--quantization int8": Try(more={"quantization": "int8"}),
}


@dataclass
class Made:
    """What is served, and engines without anything more, by settings."""

    place: Path
    plain: dict[str, TinyEngine] = field(default_factory=dict)


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Made]]:
    known: dict[str, Made] = {}

    def made(name: str) -> Made:
        if name not in known:
            place, _ = STORED[name].save(tmp_path_factory.mktemp("stored") / "model", WORDS)
            known[name] = Made(place)
        return known[name]

    with each_token_alone():  # so that steps of several tokens round as decoding does
        yield made


def play(engine: TinyEngine, options: dict[str, Any]) -> TinyEngine:
    """Prompts some of which begin alike, arriving between steps."""
    while engine.engine.has_idle_work:  # graphs are captured first
        engine.engine.work_idle()
    for number in range(6):
        prompt = [*random_prompt(24, number % 2, WORDS), *random_prompt(3 + number, number, WORDS)]
        engine.add(prompt, **{"max_tokens": 16, "ignore_eos": True, **options})
        if number % 3 == 2:
            engine.step()
    engine.run()
    engine.assert_all_free()
    return engine


@pytest.mark.parametrize(("row", "name"), [key for key in TABLE if key[0] in TRIES])
def test_a_combination(
    make: Callable[[str], Made], row: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, says = TRIES[row], TABLE[row, name]
    made = make(name)
    settings = {**wanted.settings, **wanted.more}
    if says == "refused":
        with pytest.raises((EngineStartError, UnsupportedModelError), match="not supported"):
            TinyEngine(made.place, **settings)
        return
    assert says == "yes"
    counts = capture_on_cpu(monkeypatch) if row == "steps as graphs" else None
    engine = play(TinyEngine(made.place, seed=3, **settings), wanted.options)
    assert wanted.shows(engine)
    assert counts is None or sum(counts.values()) > 8
    if "quantization" in wanted.more:
        return  # its weights are others
    key = repr((wanted.options, wanted.settings))
    if key not in made.plain:
        monkeypatch.undo()
        made.plain[key] = play(TinyEngine(made.place, seed=3, **wanted.settings), wanted.options)
    compare(engine, made.plain[key])


NAMES = [name for row, name in TABLE if row == "grammars"]


@pytest.mark.parametrize("name", NAMES)
def test_prefill_and_decode_workers(make: Callable[[str], Made], name: str) -> None:
    assert TABLE["prefill and decode workers", name] == "yes"
    made, prompt = make(name), random_prompt(30, 7, WORDS)
    pair = Pair(made.place, **SMALL_STEPS, max_running_requests=4)
    plain = TinyEngine(made.place)
    assert pair.tokens(prompt, ignore_eos=True) == plain.tokens(prompt, ignore_eos=True)
    assert pair.decode.transfers()["delivered"] == 1
    pair.settle()
    pair.close()


@pytest.mark.parametrize("name", NAMES)
def test_intel_gpus(
    make: Callable[[str], Made], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "has_kernel", lambda operator, kind: operator in XPU_KERNELS)
    says = TABLE["Intel GPUs (SYCL)", name]
    device = XpuDevice(FakeTorch(xpu=1), {})
    place = make(name).place
    formats, checkpoint = stored_formats(read_model_config(place), Checkpoint.open(place))
    shapes = {name: entry.shape for name, entry in checkpoint.tensors.items()}
    floats = [
        why_dequantized(
            module, stored, shapes[f"{module}.{stored.marker[0]}"], torch.bfloat16, device
        )
        for module, stored in formats.items()
    ]
    assert all(floats) if says == "becomes floats" else not any(floats)
    assert says in ("yes", "becomes floats") and bool(formats) == (name != "floats")


def test_every_cell_is_tried() -> None:
    """tensor_parallel_parity_test.py compares models on two ranks with those on one."""
    others = {"tensor parallelism", "prefill and decode workers", "Intel GPUs (SYCL)"}
    assert {row for row, _ in TABLE} == {*TRIES, *others}
    assert {name for _, name in TABLE} == {*STORED}
    assert {TABLE["tensor parallelism", name] for name in STORED} == {"yes"}
