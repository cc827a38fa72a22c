# SPDX-License-Identifier: Apache-2.0
"""Many prompts in one message: pooled as they are alone, in their order, answered once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rtp_llm.engine.deltas import decode_step
from rtp_llm.engine.messages import (
    ClientRequest,
    FromEngine,
    RequestFailed,
    SequenceDelta,
    StepOutput,
)
from rtp_llm.engine.process.prompt_batches import PromptBatches
from rtp_llm.request.add_prompts import AddPrompts, int32_bytes
from rtp_llm.request.params import PoolingParams
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.transformers_models import random_prompt, save_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen3")
    save_model(folder, "qwen3", seed=1)
    return folder


def batch_of(request_id: int, prompts: Sequence[list[int]], **params: Any) -> AddPrompts:
    return AddPrompts(
        request_id=request_id,
        lengths=int32_bytes([*map(len, prompts)]),
        token_ids=int32_bytes([token for prompt in prompts for token in prompt]),
        params=PoolingParams(**params),
    )


class Loop:
    """The engine process's loop, step by step. `sent`: what the client gets."""

    def __init__(self, folder: Path, window: int = 4, **settings: Any) -> None:
        self.tiny = TinyEngine(folder, max_running_requests=4, **settings)
        self.batches = PromptBatches(self.tiny.engine, window)
        self.sent: list[FromEngine] = []

    def step(self) -> None:
        self.sent += self.batches.feed()
        self.sent += self.batches.take(self.tiny.engine.step())

    def run(self) -> None:
        while self.batches.waiting or self.tiny.engine.has_work:
            self.step()

    def deltas(self) -> dict[int, list[SequenceDelta]]:
        found: dict[int, list[SequenceDelta]] = {}
        for output in self.sent:
            if isinstance(output, StepOutput):
                for request_id, delta in decode_step(output):
                    found.setdefault(request_id, []).append(delta)
        return found


PROMPTS = [random_prompt(length, seed=length) for length in (1, 40, 5, 17, 3, 90, 2, 33, 64, 8)]


def alone(folder: Path, prompts: Sequence[list[int]], **params: Any) -> list[Any]:
    engine = TinyEngine(folder)
    ids = [engine.add_request(prompt, PoolingParams(**params)) for prompt in prompts]
    engine.run()
    return [engine.outcomes[each, 0].pooled for each in ids]


@pytest.mark.parametrize("queued", [1, 1024])
@pytest.mark.parametrize("kind", ["last", "mean"])
def test_vectors_come_once_in_order_among_others(folder: Path, kind: Any, queued: int) -> None:
    loop = Loop(folder, 8, max_batch_tokens_size=32, max_queued_requests=queued)
    loop.batches.add(batch_of(7, PROMPTS, pooling_type=kind))
    loop.batches.add(batch_of(9, PROMPTS[::-1], pooling_type=kind))
    sampled = loop.tiny.add([7, 8, 9], max_tokens=6, ignore_eos=True)
    loop.run()
    found = loop.deltas()
    expected = alone(folder, PROMPTS, pooling_type=kind)
    for request_id, vectors in ((7, expected), (9, expected[::-1])):
        (delta,) = found[request_id]
        assert (delta.finish_reason, delta.token_ids) == ("stop", [])
        pooled = np.frombuffer(delta.pooled or b"", np.float32).reshape(len(PROMPTS), -1)
        np.testing.assert_allclose(pooled, np.array(vectors), atol=2e-5)
    assert sum(len(delta.token_ids) for delta in found[sampled]) == 6
    assert {request for request in found if request < 1 << 55} == {7, 9, sampled}
    bytes_sent = [len(o.pooled.values) for o in loop.sent if isinstance(o, StepOutput) and o.pooled]
    assert 1 <= len(bytes_sent) <= 2  # one for each request, or one for both
    loop.tiny.assert_all_free()


def test_an_aborted_batch_leaves_nothing(folder: Path) -> None:
    loop = Loop(folder, max_batch_tokens_size=16)
    loop.batches.add(batch_of(7, PROMPTS))
    loop.batches.add(batch_of(8, PROMPTS[:1]))
    loop.step()
    assert loop.batches.abort([(7, 0), (99, 0)]) == [(7, 0), (99, 0)]
    loop.run()
    assert 7 not in loop.deltas() and len(loop.deltas()[8]) == 1
    loop.tiny.assert_all_free()


def test_one_prompt_that_cannot_run_fails_its_batch_only(folder: Path) -> None:
    loop = Loop(folder)
    loop.batches.add(batch_of(7, [*PROMPTS[:6], [10_000], *PROMPTS[6:]]))
    loop.batches.add(batch_of(8, PROMPTS[:3]))
    loop.run()
    (failed,) = [each for each in loop.sent if isinstance(each, RequestFailed)]
    assert (failed.request_id, failed.kind) == (7, "invalid")
    assert "10000 is outside the vocabulary" in failed.message
    assert [*loop.deltas()] == [8]
    loop.tiny.assert_all_free()


def test_a_prompt_of_nan_fails_its_batch_only(folder: Path) -> None:
    loop = Loop(folder)
    with torch.inference_mode():
        loop.tiny.built.worker.runner.model.model.embed_tokens.weight[7] = torch.nan
    prompts: list[list[int]] = [[5, 6], [8, 7, 9], *PROMPTS[2:3]]
    clean: ClientRequest = batch_of(8, [[5, 6]])
    loop.batches.add(batch_of(7, prompts))
    loop.batches.add(clean)
    loop.run()
    found = loop.deltas()
    assert [delta.error for delta in found[7]] == ["model_produced_nan"]
    assert found[8][0].error is None
    loop.tiny.assert_all_free()
