# SPDX-License-Identifier: Apache-2.0
"""`rtp-llm bench serve` against a server that says what it is asked for."""

from __future__ import annotations

import itertools
import json
import math
import random
import statistics
from pathlib import Path
from typing import Any

import pytest

from rtp_llm import cli
from rtp_llm.bench.arrivals import arrivals
from rtp_llm.bench.load import Outcome
from rtp_llm.bench.metrics import summarise, tpot
from rtp_llm.bench.samples import (
    DatasetError,
    Lengths,
    custom_samples,
    random_samples,
    sharegpt_samples,
)
from rtp_llm.bench.texts import TokenizerTexts, WordTexts
from rtp_llm.testing.server.raw_server import (
    DONE,
    Request,
    answer_json,
    chat_events,
    event,
    raw_server,
    stream_head,
)
from rtp_llm.testing.server.serving import demo_tokenizer, fake_engine, listening

_MODELS = answer_json({"data": [{"id": "first"}]})


def counting(request: Request) -> list[bytes]:
    """A server for which a word is two tokens, and a chat ten more."""
    if request.line.startswith("GET"):
        return [_MODELS]
    content = request.content
    output = content["max_tokens"]
    if "messages" in content:
        tokens = 10 + 2 * len(content["messages"][0]["content"].split())
        usage = {"prompt_tokens": tokens, "completion_tokens": output}
        return chat_events(*["a"] * output, usage=usage)
    usage = {"prompt_tokens": 2 * len(content["prompt"].split()), "completion_tokens": output}
    choices: list[dict[str, Any]] = [{"text": "a"}] * output
    choices = [*choices, {"text": "", "finish_reason": "length"}]
    events = [event({"choices": [each]}) for each in choices]
    return [stream_head(), *events, event({"choices": [], "usage": usage}), DONE]


def bench(url: str, *words: str) -> int:
    return cli.main(["bench", "serve", "--base-url", url, *words])


@pytest.mark.parametrize("backend", ["openai", "openai-chat"])
def test_lengths_are_as_the_server_counts(
    backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--random-input-len", "50", "--random-output-len", "3", "--num-prompts", "4"]
    saved = ["--save-result", "--save-detailed", "--result-dir", str(tmp_path)]
    more = ["--result-filename", "r.json", "--metadata", "tp=1", "--goodput", "e2el:1e9"]
    flags = ["--backend", backend, "--ignore-eos", "--top-k", "5", "--max-concurrency", "2"]
    with raw_server(counting) as server:
        assert bench(f"{server.url}/v1", *sizes, *saved, *more, *flags) == 0
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["input_lens"] == [50] * 4 and result["output_lens"] == [3] * 4
    assert (result["completed"], result["failed"]) == (4, 0)
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (200, 12)
    assert result["model_id"] == "first" and result["tp"] == "1"
    assert result["max_concurrent_requests"] <= 2
    assert result["request_goodput"] == pytest.approx(result["request_throughput"])
    assert result["generated_texts"] == ["aaa"] * 4
    assert [len(each) for each in result["itls"]] == [2] * 4
    for name in ("ttft", "tpot", "itl", "e2el"):
        assert result[f"median_{name}_ms"] <= result[f"p99_{name}_ms"]
    body = server.requests[-1].content
    assert body["ignore_eos"] is True and body["top_k"] == 5 and "seed" not in body
    lines = capsys.readouterr().out.splitlines()
    assert f"{'Successful requests:':<40} 4" in lines
    assert f"{'Total generated tokens:':<40} 12" in lines
    assert any(line.startswith("P99 TTFT (ms):") for line in lines)


def test_our_server(capsys: pytest.CaptureFixture[str]) -> None:
    with listening(fake_engine()) as url:
        words = [
            "--num-prompts",
            "3",
            "--input-len",
            "40",
            "--output-len",
            "5",
            "--num-warmups",
            "1",
        ]
        assert bench(url, *words, "--backend", "openai-chat", "--request-rate", "200") == 0
    out = capsys.readouterr().out
    assert f"{'Total generated tokens:':<40} 15\n" in out
    assert f"{'Request rate configured (RPS):':<40} 200.00\n" in out


def test_failures_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(request: Request) -> list[bytes]:
        wants_many = request.body and request.content["max_tokens"] > 1
        refusal = answer_json({"error": {"message": "overloaded"}}, "503 Busy")
        return [refusal] if wants_many else counting(request)

    with raw_server(refuse) as server:
        assert bench(server.url, "--num-prompts", "12") == 1
    printed = capsys.readouterr()
    assert f"{'Failed requests:':<40} 12\n" in printed.out
    assert printed.err.count("failed: overloaded (HTTP 503)\n") == 10
    assert "... and 2 more" in printed.err


def test_a_server_that_does_not_count(capsys: pytest.CaptureFixture[str]) -> None:
    def silent(request: Request) -> list[bytes]:
        return [_MODELS] if request.line.startswith("GET") else chat_events("a", "b")

    with raw_server(silent) as server:
        words = ["--backend", "openai-chat", "--num-prompts", "2", "--input-len", "8"]
        assert bench(server.url, *words) == 0
    printed = capsys.readouterr()
    assert "the server does not count tokens: a word is taken for one" in printed.err
    assert "the server counts no tokens: events of its streams were counted" in printed.err
    assert f"{'Total generated tokens:':<40} 4\n" in printed.out


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["serve", "--port", "9"], 1, "error: http://127.0.0.1:9: "),
        (["serve", "--dataset-name", "custom"], 2, "--dataset-path: give the file of custom"),
        (["serve", "--model", "m", "--tokenizer", "/nowhere"], 1, "error: --tokenizer: "),
        (["latency"], 2, "FOLDER: give the folder of a model"),
        (["latency", "/nowhere"], 1, "no model folder at /nowhere"),
        ([], 2, "what to measure is needed"),
        (["sing"], 2, "what to measure is needed"),
    ],
)
def test_errors(words: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", *words]) == code
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "value", "says"),
    [
        ("--goodput", "itl:5", "'itl:5' is not NAME:MILLISECONDS with a name of ttft, tpot, e2el"),
        ("--percentile-metrics", "ttft,x", "'x' is not one of ttft, tpot, itl, e2el"),
        ("--metric-percentiles", "101", "'101' is not a number from 0 to 100"),
        ("--request-rate", "0", "'0' is not above 0"),
        ("--max-concurrency", "0", "'0' is not a whole number above 0"),
        ("--header", "x", "'x' is not NAME=VALUE"),
        ("--extra-body", "[1]", "'[1]' is not a JSON object"),
    ],
)
def test_flags(flag: str, value: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["bench", "serve", flag, value])
    assert stopped.value.code == 2
    assert f"argument {flag}: {says}" in capsys.readouterr().err


def test_arrivals() -> None:
    assert arrivals(3, math.inf, 1.0, 0) == [0.0] * 3
    assert arrivals(4, 2.0, math.inf, 0) == [0.5, 1.0, 1.5, 2.0]
    times = arrivals(4000, 10.0, 1.0, 7)
    assert times == arrivals(4000, 10.0, 1.0, 7) == sorted(times)
    assert times[-1] == pytest.approx(400.0)
    spreads = []
    for burstiness in (0.25, 1.0, 4.0):
        found = arrivals(4000, 10.0, burstiness, 7)
        gaps = [after - before for before, after in itertools.pairwise(found)]
        spreads.append(statistics.stdev(gaps) / statistics.mean(gaps))
    # Of the gamma distribution: one over the root of its shape.
    assert spreads == pytest.approx([2.0, 1.0, 0.5], rel=0.1)


def test_latencies() -> None:
    """By hand: two answers and a failure."""
    outcomes = [
        Outcome(10, 0.0, 0.5, [0.25, 0.25], 1.0, 0.0, 5, is_counted=True),
        Outcome(20, 0.25, 1.0, [], 1.0, 0.5, 1, is_counted=True),
        Outcome(30, error="lost"),
    ]
    assert [tpot(each) for each in outcomes] == [0.125, 0.0, 0.0]
    names = ["ttft", "tpot", "itl", "e2el", "client_queue_time"]
    found = summarise(outcomes, 2.0, {"ttft": 600.0, "tpot": 200.0}, names, [50, 100])
    assert found["total_input_tokens"] == 30 and found["total_output_tokens"] == 6
    assert found["total_token_throughput"] == 18.0 and found["output_throughput"] == 3.0
    assert (found["completed"], found["failed"], found["request_goodput"]) == (2, 1, 0.5)
    assert found["mean_ttft_ms"] == 750.0 and found["p100_ttft_ms"] == 1000.0
    assert found["mean_tpot_ms"] == 125.0 and found["median_itl_ms"] == 250.0
    assert found["mean_client_queue_time_ms"] == 250.0
    assert found["max_concurrent_requests"] == 2
    assert found["max_output_tokens_per_s"] == pytest.approx(10 / 3)
    assert summarise([], 1.0, {}, names, [99])["p99_itl_ms"] == 0.0


def test_texts_of_a_tokenizer() -> None:
    texts = TokenizerTexts(demo_tokenizer())
    samples = random_samples(5, Lengths(40, 8, ratio=0.5, prefix=10), texts, 3)
    assert samples == random_samples(5, Lengths(40, 8, ratio=0.5, prefix=10), texts, 3)
    for sample in samples:
        assert 30 <= texts.count(sample.prompt) == sample.prompt_tokens <= 70
        assert 4 <= sample.output_tokens <= 12
    first, *others = (sample.prompt for sample in samples)
    assert all(each[:8] == first[:8] and each != first for each in others)


def test_conversations_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "sharegpt.json"
    turns = [("question " * n, "answer " * n) for n in (1, 4, 8, 4000)]
    rows: list[Any] = [
        {"conversations": [{"from": "human", "value": q}, {"from": "gpt", "value": a}]}
        for q, a in turns
    ]
    file.write_text(json.dumps([*rows, {"conversations": []}]))
    samples = sharegpt_samples(str(file), 5, None, WordTexts(), 0)
    assert len(samples) == 5 and {each.prompt for each in samples} == {turns[1][0], turns[2][0]}
    assert {each.output_tokens for each in samples} == {7, 14}
    assert {s.output_tokens for s in sharegpt_samples(str(file), 5, 9, WordTexts(), 0)} == {9}
    for content, says in (("[]", "nothing that could be sent"), ("{", "not valid JSON")):
        file.write_text(content)
        with pytest.raises(DatasetError, match=says):
            sharegpt_samples(str(file), 5, None, WordTexts(), 0)


def test_prompts_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_text('{"prompt": "one", "output_tokens": 7}\n\n{"prompt": "two"}\n')
    samples = custom_samples(str(file), 3, 5, WordTexts(), 0, shuffle=False)
    assert [(s.prompt, s.output_tokens) for s in samples] == [("one", 5), ("two", 5), ("one", 5)]
    with pytest.raises(DatasetError, match="line 2: a line is"):
        custom_samples(str(file), 3, -1, WordTexts(), 0)
    with pytest.raises(DatasetError, match="No such file"):
        custom_samples("/nowhere", 3, 5, WordTexts(), 0)


def test_words() -> None:
    texts = WordTexts(per_word=2.0, overhead=10.0)
    assert len(texts.make(random.Random(0), 50).split()) == 20
    assert texts.make(random.Random(0), 50, "a b").startswith("a b ")
