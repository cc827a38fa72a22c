# SPDX-License-Identifier: Apache-2.0
"""Ten thousand random requests: every block comes back, nothing is kept, memory stays."""

from __future__ import annotations

import gc
import os
import random
from pathlib import Path
from typing import Any

import pytest

from rtp_llm.engine.messages import RequestError
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.transformers_models import random_prompt, save_model

REQUESTS = 10_000
MAX_GROWTH = 16 * 2**20


def resident_bytes() -> int:
    gc.collect()
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


class Load:
    """Adds and aborts at random, with every feature of sampling in the mix."""

    def __init__(self, engine: TinyEngine) -> None:
        self.engine = engine
        self.added = self.refused = self.aborted = 0
        self._chance = random.Random(1)

    def turn(self) -> None:
        """Some requests, perhaps an abort, a step."""
        for _ in range(self._chance.randrange(4)):
            self._add()
        if self.engine.outcomes and self._chance.random() < 0.15:
            victim, _ = self._chance.choice(list(self.engine.outcomes))
            self.engine.engine.abort([(victim, index) for index in range(4)])
            self._forget(victim)
            self.aborted += 1
        self.engine.step()
        for key in [key for key, outcome in self.engine.outcomes.items() if outcome.finish]:
            del self.engine.outcomes[key]

    def _forget(self, request_id: int) -> None:
        outcomes = self.engine.outcomes
        for key in [key for key in outcomes if key[0] == request_id]:
            del outcomes[key]

    def _add(self) -> None:
        chance = self._chance
        length = chance.choice((1, 3, 9, 20, 60, 120))
        option_sets: dict[str, Any] = {
            "n": chance.choice((1, 1, 1, 2, 4)),
            "max_tokens": chance.randrange(1, 70),
            "temperature": chance.choice((0.0, 1.0)),
            "priority": chance.randrange(-2, 3),
        }
        for share, more in (
            (0.2, {"presence_penalty": 0.5, "no_repeat_ngram_size": 3}),
            (0.1, {"logprobs": 3}),
            (0.05, {"prompt_logprobs": 2}),
            (0.1, {"logit_bias": {5: 3.0}, "min_tokens": 1, "stop_token_ids": (7, 9)}),
            (0.05, {"processors": [do_nothing]}),
        ):
            option_sets.update(more if chance.random() < share else {})
        try:
            self.engine.add(random_prompt(length, seed=chance.randrange(50)), **option_sets)
            self.added += 1
        except RequestError as error:
            assert error.kind == "queue_full"
            self.refused += 1


def do_nothing(logits: object, rows: object) -> None:
    """A logits processor that likes everything."""


@pytest.mark.parametrize("overlap", [False, True])
def test_ten_thousand_requests_leave_no_trace(overlap, tmp_path):
    save_model(tmp_path, "llama")
    engine = TinyEngine(
        tmp_path,
        kv_cache_mem_mb=2,
        seq_size_per_block=4,
        max_seq_len=200,
        max_running_requests=24,
        max_queued_requests=40,
        max_batch_tokens_size=48,
        enable_overlap=overlap,
    )
    load = Load(engine)
    while load.added < REQUESTS // 5:
        load.turn()
    before = resident_bytes()
    while load.added < REQUESTS:
        load.turn()
    engine.run()
    engine.assert_all_free()
    assert resident_bytes() - before < MAX_GROWTH
    assert load.refused > 0
    assert load.aborted > 0
    assert engine.engine.stats().preemptions > 0
    assert not engine.engine._sequences.watched
    worker = engine.built.worker
    assert not worker._processor_slots
    assert not worker.prompt_heads["score"]._requests
    assert not worker.sampler._processors._members
