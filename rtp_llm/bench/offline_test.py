# SPDX-License-Identifier: Apache-2.0
"""`rtp-llm bench latency` and `throughput`, with the demo model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rtp_llm import cli

DEMO = Path(__file__).parents[2] / "example" / "demo_model"
SMALL = ["--device-type", "cpu", "--num-threads", "1", "--kv-cache-mem-mb", "8"]


def test_latency(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "latency.json"
    sizes = ["--input-len", "8", "--output-len", "4", "--batch-size", "2"]
    rounds = ["--num-iters", "3", "--num-iters-warmup", "1", "--output-json", str(file)]
    assert cli.main(["bench", "latency", str(DEMO), *SMALL, *sizes, *rounds]) == 0
    result = json.loads(file.read_text())
    assert len(result["latencies"]) == 3 and list(result["percentiles"])[-1] == "99"
    assert min(result["latencies"]) <= result["avg_latency"] <= max(result["latencies"])
    out = capsys.readouterr().out
    assert out.startswith(f"Avg latency: {result['avg_latency']} seconds\n")
    assert f"50% percentile latency: {result['percentiles']['50']} seconds\n" in out


def test_throughput(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, prompts = tmp_path / "throughput.json", tmp_path / "prompts.jsonl"
    common = ["bench", "throughput", "--model", str(DEMO), *SMALL, "--num-prompts", "3"]
    saved = ["--output-json", str(file), "--output-len", "4"]
    lengths = ["--input-len", "8", "--random-prefix-len", "2", "--n", "2"]
    assert cli.main([*common, *saved, *lengths]) == 0
    result = json.loads(file.read_text())
    assert result["num_requests"] == 3 and result["total_num_tokens"] == 3 * (8 + 2 + 2 * 4)
    assert "Total num prompt tokens:  30\nTotal num output tokens:  24\n" in capsys.readouterr().out
    prompts.write_text('{"prompt": "What is 1 + 2?"}\n')
    assert (
        cli.main([*common, *saved, "--dataset-name", "custom", "--dataset-path", str(prompts)]) == 0
    )
    assert "Total num output tokens:  12\n" in capsys.readouterr().out
    assert cli.main([*common, "--input-len", "5000"]) == 1
    assert "longer than the context of 1024; make --input-len" in capsys.readouterr().err


def test_throughput_takes_the_flags_of_data_sets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sharegpt.json"
    turns = [{"value": "What is 12 + 30, I ask?"}, {"value": "12 + 30 = 42, I think."}]
    file.write_text(json.dumps([{"conversations": turns}]))
    words = ["bench", "throughput", "--model", str(DEMO), *SMALL, "--num-prompts", "2"]
    words += ["--dataset-name", "sharegpt", "--dataset-path", str(file)]
    assert cli.main([*words, "--sharegpt-output-len", "7"]) == 0
    assert "Total num output tokens:  14\n" in capsys.readouterr().out
