# SPDX-License-Identifier: Apache-2.0
"""A layer that is not called with the batch knows the adapter of each of its rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rtp_llm.engine import admission
from rtp_llm.testing.engine.replays import capture_on_cpu
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.spanned_model import ADAPTED, ADAPTERS
from rtp_llm.testing.models.spanned_prompts import save_spanned_model
from rtp_llm.testing.models.transformers_models import random_prompt

SMALL: dict[str, Any] = {
    "seq_size_per_block": 4,
    "max_seq_len": 96,
    "max_running_requests": 12,
    "max_batch_tokens_size": 24,
    "kv_cache_mem_mb": 2,
}
KEYS = ["", *map(str, range(ADAPTERS))]  # requests name their adapter by extra_key here


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("adapted")
    save_spanned_model(path, ADAPTED)
    return path


@pytest.fixture(autouse=True)
def named_by_key(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def inputs(request: Any) -> dict[str, int]:
        return {"adapter_slot": int(request.extra_key or -1)}

    monkeypatch.setattr(admission, "scheduler_inputs", inputs)
    yield


def answers(engine: TinyEngine, *, alone: bool) -> list[list[int]]:
    requests = []
    for number, key in enumerate(KEYS * 2):
        prompt = random_prompt(9 + number % 5)
        requests.append(engine.add(prompt, key=key, max_tokens=8, ignore_eos=True))
        if alone:
            engine.run()
    engine.run()
    engine.assert_all_free()
    return [engine.outcomes[request, 0].tokens for request in requests]


@pytest.mark.parametrize("graphs", [False, True], ids=["", "graphs"])
def test_adapters_of_one_batch(folder: Path, graphs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = answers(TinyEngine(folder, **SMALL), alone=True)
    assert len({tuple(each) for each in expected[:4]}) == 4, "each adapter says something else"
    counts = capture_on_cpu(monkeypatch) if graphs else {}
    assert answers(TinyEngine(folder, **SMALL, enable_graphs=graphs), alone=False) == expected
    assert bool(sum(counts.values())) == graphs
