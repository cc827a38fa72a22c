# SPDX-License-Identifier: Apache-2.0
"""Drafts after prompts computed by another worker match a single engine's, step by step."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rtp_llm.engine.messages import EngineStartError
from rtp_llm.testing.disagg.workers import Pair, Worker
from rtp_llm.testing.engine.drafting_models import (
    DRAFT_MODELS,
    WORDS,
    Model,
    save_drafting_model,
)
from rtp_llm.testing.engine.each_token_alone import each_token_alone
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.transformers_models import random_prompt
from rtp_llm.worker.local_worker import LocalWorker
from rtp_llm.worker.speculative import methods

SIZES: dict[str, Any] = {
    "seq_size_per_block": 4,
    "max_batch_tokens_size": 40,
    "max_running_requests": 6,
    "speculative_adaptive": False,
}
ON_DEVICE = "ngram llama, on the device"
KINDS = (
    "ngram llama",
    ON_DEVICE,
    "suffix llama",
    "mtp qwen3_5",
    "mtp qwen3_next",
    "mtp deepseek_v3",
    "eagle3 llama",
    "eagle3 qwen3_5",
    *DRAFT_MODELS,
)
WITH_STATES = ("mtp", "eagle3")
Drafts = dict[int, list[tuple[int, list[int]]]]


def log_drafts(worker: LocalWorker) -> Drafts:
    """By sequence, for each step that verifies drafts of it: its output so far, and the drafts."""
    log: Drafts = defaultdict(list)
    runner, forward = worker.runner, worker.runner.forward

    def logged(step: Any) -> Any:
        hidden, plan = forward(step), step.plan
        for first, end in zip(plan.row_cu[:-1].tolist(), plan.row_cu[1:].tolist(), strict=True):
            if end - first > 1:
                told = plan.draft_tokens
                if worker.drafter is not None:
                    assert runner.sampled is not None
                    told = runner.sampled.drafts
                drafts = told[first : end - 1].tolist()
                log[int(plan.row_ids[first])].append((int(plan.row_steps[first]), drafts))
        return hidden

    runner.forward = logged  # type: ignore[method-assign]
    return log


class Both:
    """A pair of workers and one engine, which get the same requests."""

    def __init__(self, model: Model, **settings: Any) -> None:
        self.settings = {**SIZES, **model.settings, **settings}
        self.pair = Pair(model.folder, **self.settings)
        self.fused = TinyEngine(model.folder, **self.settings)
        self.of_pair = log_drafts(self.pair.decode.base.worker)
        self.of_fused = log_drafts(self.fused.built.worker)

    def run(self, *prompts: list[int], **params: Any) -> list[int]:
        """All at once; the last one's tokens. Both gave the same, and drafted the same."""
        wanted = {"max_tokens": 22, "ignore_eos": True, **params}
        ids = [self.pair.decode.add(prompt, **wanted) for prompt in prompts]
        self.pair.until(lambda: self.pair.finished(*ids))
        self.pair.settle()
        for prompt in prompts:
            self.fused.add(prompt, **wanted)
        self.fused.run()
        for each in ids:
            found, expected = self.pair.decode.outcomes[each], self.fused.outcomes[each, 0]
            assert (found.tokens, found.finish) == (expected.tokens, expected.finish)
            assert found.logprobs == expected.logprobs
        assert self.of_pair == self.of_fused
        return found.tokens

    def check_counts(self) -> None:
        """As many drafts were right at each place, and some were."""
        found, expected = self.pair.decode.engine.stats(), self.fused.engine.stats()
        assert found.spec_decode_num_drafts == expected.spec_decode_num_drafts
        assert found.spec_decode_accepted_per_pos == expected.spec_decode_accepted_per_pos
        assert sum(found.spec_decode_accepted_per_pos) > 0

    def close(self) -> None:
        self.pair.close()


@pytest.fixture(scope="module", params=KINDS)
def model(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    named = request.param.removesuffix(", on the device")
    made = save_drafting_model(tmp_path_factory.mktemp("model"), named)
    with each_token_alone(), pytest.MonkeyPatch.context() as patched:
        if request.param == ON_DEVICE:
            patched.setattr(methods, "matches_on_device", lambda settings, device: True)
        yield made


@pytest.fixture(scope="module")
def both(model: Model) -> Iterator[Both]:
    made = Both(model)
    yield made
    made.close()


def text(length: int, seed: int = 0) -> list[int]:
    return random_prompt(length, seed, WORDS)


def test_drafts_are_those_of_one_engine(both: Both) -> None:
    for length in (1, 4, 21, 45, 90):  # of one chunk and of several
        both.run(text(length, length))
    both.run(text(30, 7), temperature=0.8, seed=3, logprobs=1)
    both.run(text(30, 8), speculate=False)
    both.check_counts()
    assert both.pair.decode.transfers()["delivered"] == 7
    assert not both.pair.decode.failures()


def test_prefixes_that_both_have(both: Both) -> None:
    for _ in range(2):
        both.run(text(37, 5))
    both.run([*text(37, 5), *text(9, 6)])


def test_steps_overlap(model: Model) -> None:
    both = Both(model, enable_overlap=True, max_batch_tokens_size=64)
    prompts = [text(length, length) for length in (3, 17, 24, 40)]
    # Drafts from the answers to others depend on who is faster.
    together = 1 if model.settings["speculative"] == "suffix" else len(prompts)
    for first in range(0, len(prompts), together):
        both.run(*prompts[first : first + together])
    both.run(text(12, 1), repetition_penalty=1.2)
    assert both.pair.decode.transfers()["delivered"] == 5
    both.check_counts()
    both.close()


def test_a_prompt_that_is_computed_here_after_all(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill, before = both.pair.prefill.connector, both.pair.decode.transfers()
    monkeypatch.setattr(prefill, "_refusal", lambda message: ("queue_full", "a test"))
    both.run(text(33, 2))
    assert both.pair.decode.transfers()["fallbacks"] == before.get("fallbacks", 0) + 1


@pytest.mark.parametrize("begin", [b"", b"\xff\xff\xff\x7f"])
def test_states_that_make_no_sense_are_not_taken(
    both: Both, begin: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too short, or with a draft that is no token: the prompt is computed again."""
    writer: Any = both.pair.prefill.connector._sender.writer
    take, taken = writer.take_draft_state, []

    def changed(sequence: int) -> bytes:
        taken.append(state := take(sequence))
        return begin + state[4:] if state else b"something"

    monkeypatch.setattr(writer, "take_draft_state", changed)
    before = both.pair.decode.failures().get("invalid_answer", 0)
    both.run(text(35, before))
    assert both.pair.decode.failures()["invalid_answer"] == before + 1
    assert [len(state) > 4 for state in taken] == [both.settings["speculative"] in WITH_STATES]


def test_an_answer_of_one_token_is_forgotten(both: Both) -> None:
    prompt = text(19, 3)
    first = both.run(prompt, max_tokens=2)[0]
    both.run(prompt, stop_token_ids=[first])
    engine: Any = both.pair.decode.base.engine
    proposer, drafter = engine._proposer, both.pair.decode.base.worker.drafter
    kept = proposer.native.num_sequences if hasattr(proposer, "native") else len(proposer._ids)
    assert kept == 0
    assert not hasattr(drafter, "histories") or drafter.histories.num_sequences == 0


@pytest.mark.parametrize("kind", ["mtp qwen3_5", "draft-model llama llama"])
def test_drafts_that_are_sampled(kind: str, tmp_path: Path) -> None:
    """By seed and position, so that they are those of one engine, too."""
    with each_token_alone():
        made = save_drafting_model(tmp_path, kind)
        both = Both(made, draft_sample_method="probabilistic")
        for seed in range(3):
            both.run(text(21, seed), temperature=0.9, seed=seed)
        both.check_counts()
        both.close()


def test_states_in_bfloat16(tmp_path: Path) -> None:
    with each_token_alone():
        both = Both(save_drafting_model(tmp_path, "eagle3 llama"), dtype="bfloat16")
        both.run(text(21, 1))
        both.close()


def refusal(prefill: Worker, folder: Path, **settings: Any) -> str:
    """Why a decode worker of these settings does not start."""
    address = prefill.built.ready.prefill_address
    with pytest.raises(EngineStartError) as raised:
        Worker(folder, role="decode", prefill_workers=address, **{**SIZES, **settings})
    return str(raised.value)


def test_workers_draft_in_the_same_way(tmp_path: Path) -> None:
    model = save_drafting_model(tmp_path / "model", "eagle3 llama")
    other = save_drafting_model(tmp_path / "other", "draft-model llama llama")
    here = {**SIZES, "role": "prefill", "prefill_address": "127.0.0.1:0", **model.settings}
    prefill = Worker(model.folder, **here)
    reason = refusal(prefill, model.folder)
    assert re.search(r"speculative is eagle3:3:\w{16} there and none here: give both the", reason)
    assert "layers" not in reason.splitlines()[-1]
    head = str(other.folder.parent / "head")
    for change, shown in (
        ({"num_speculative_tokens": 2}, "eagle3:2:"),
        ({"draft_sample_method": "probabilistic"}, "eagle3:3:sampled:"),
        ({"speculative": "draft-model", "speculative_model": head}, "draft-model:3:"),
    ):
        assert f" and {shown}" in refusal(prefill, model.folder, **{**model.settings, **change})
    prefill.connector.close()


def test_drafts_of_tokens_are_the_decode_workers_business(tmp_path: Path) -> None:
    model = save_drafting_model(tmp_path, "ngram llama")
    with each_token_alone():
        pair = Pair(model.folder, **SIZES, decode=model.settings)
        found = pair.tokens(text(30, 1), max_tokens=20, ignore_eos=True)
        plain = TinyEngine(model.folder, **SIZES)
        assert found == plain.tokens(text(30, 1), max_tokens=20, ignore_eos=True)
        assert pair.decode.engine.stats().spec_decode_num_drafts > 0
        pair.close()
