# SPDX-License-Identifier: Apache-2.0
"""`rtp-llm serve` of a Qwen3.5-MoE folder with its layer of multi-token prediction, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import openai
import pytest
import torch
from safetensors.torch import load_file, save_file

from rtp_llm.testing.model_folders import byte_level, with_bos, write_folder
from rtp_llm.testing.models.mtp_models import save_mtp_model
from rtp_llm.testing.models.transformers_models import clear_prompt
from rtp_llm.testing.server.serving import wait_for
from rtp_llm.testing.server_processes import REAL, TIMEOUT, process, read_metrics

DRAFTS = ["--speculative", "mtp", "--num-speculative-tokens", "3", "--speculative-adaptive", "off"]
FLAGS = ["--dtype", "float32", "--num-threads", "1", "--kv-cache-mem-mb", "16", *DRAFTS]
LIKELY = slice(40, 48)  # so few tokens are likely that random drafts are right now and then
COUNT = 40


@dataclass
class Served:
    """A server's address, and prompts with the continuations that transformers generates."""

    url: str
    answers: list[tuple[list[int], list[int]]]

    def ask(self, prompt: Any, **fields: Any) -> Any:
        client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)
        extra = {"ignore_eos": True, "return_token_ids": True, **fields.pop("extra", {})}
        requested: Any = {"model": "tiny", "max_tokens": COUNT, "temperature": 0.0, **fields}
        return client.completions.create(prompt=prompt, extra_body=extra, **requested)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = with_bos(byte_level())
    model, _ = save_mtp_model(folder, "qwen3_5_moe", vocab_size=tokenizer.get_vocab_size())
    with torch.no_grad():
        likely = model.lm_head.weight[LIKELY].clone()
        model.lm_head.weight.mul_(0.02)[LIKELY] = likely
    file, config = folder / "model.safetensors", (folder / "config.json").read_text()
    head = {"lm_head.weight": model.lm_head.weight.detach().clone()}
    save_file(load_file(file) | head, file, {"format": "pt"})
    write_folder(folder, tokenizer)
    (folder / "config.json").write_text(config)
    answers = [clear_prompt(model, length, COUNT) for length in (1, 9, 70)]
    with process(*FLAGS, command=REAL, model=folder) as server:
        yield Served(server.url, answers)


def drafts_of(usage: Any) -> tuple[int, int]:
    """Accepted and rejected ones."""
    details = usage.completion_tokens_details
    return details.accepted_prediction_tokens, details.rejected_prediction_tokens


def counted_drafts(url: str) -> dict[str, float]:
    """As /metrics has them, by kind."""
    metrics = read_metrics(url)
    name = "rtp_llm_spec_decode_num_{}_tokens_total"
    return {kind: metrics[name.format(kind)] for kind in ("accepted", "draft")}


def test_answers_are_those_of_transformers(served: Served) -> None:
    accepted = rejected = 0
    for prompt, tokens in served.answers:
        for speculate in (True, False):
            done = served.ask(prompt, extra={"speculate": speculate})
            assert done.choices[0].token_ids == tokens
            if not speculate:
                assert done.usage.completion_tokens_details is None or drafts_of(done.usage) == (
                    0,
                    0,
                )
                continue
            right, wrong = drafts_of(done.usage)
            accepted, rejected = accepted + right, rejected + wrong
    assert accepted > 0 < rejected
    # The engine tells its counters every quarter of a second.
    drafts = {"accepted": accepted, "draft": accepted + rejected}
    wait_for(lambda: counted_drafts(served.url) == drafts, TIMEOUT)


def test_all_prompts_in_one_request_as_a_stream(served: Served) -> None:
    prompts, expected = zip(*served.answers, strict=True)
    found: list[list[int]] = [[] for _ in prompts]
    chunks = served.ask(list(prompts), stream=True, stream_options={"include_usage": True})
    for chunk in chunks:
        for choice in chunk.choices:
            found[choice.index] += choice.token_ids
    assert found == list(expected)
    assert min(drafts_of(chunk.usage)) > 0


def test_a_seed_says_the_same_with_and_without_drafts(served: Served) -> None:
    options = {"temperature": 0.9, "seed": 11, "n": 2}
    prompt, _ = served.answers[1]
    both = [
        [
            each.token_ids
            for each in served.ask(prompt, **options, extra={"speculate": speculate}).choices
        ]
        for speculate in (True, False)
    ]
    assert both[0] == both[1]
    assert both[0][0] != both[0][1]


def test_stop_strings_end_answers_inside_a_window(served: Served) -> None:
    prompt, _ = served.answers[1]
    (whole,) = served.ask(prompt).choices
    rejected = 0
    for place in range(0, len(whole.text) - 1, 5):
        options = {"stop": [whole.text[place : place + 2]], "logprobs": 2}
        extra: dict[str, Any] = {"min_tokens": place // 2} if place % 2 else {}
        with_drafts, without = (
            served.ask(prompt, **options, extra={"speculate": speculate, **extra})
            for speculate in (True, False)
        )
        (mine,), (expected,) = with_drafts.choices, without.choices
        assert (mine.text, mine.finish_reason) == (expected.text, expected.finish_reason)
        assert mine.token_ids == expected.token_ids
        assert mine.logprobs.tokens == expected.logprobs.tokens
        assert mine.logprobs.token_logprobs == pytest.approx(
            expected.logprobs.token_logprobs, abs=1e-3
        )
        assert with_drafts.usage.completion_tokens == without.usage.completion_tokens
        if not extra:
            assert mine.finish_reason == "stop" and whole.text.startswith(mine.text)
        rejected += drafts_of(with_drafts.usage)[1]
    assert rejected > 0
