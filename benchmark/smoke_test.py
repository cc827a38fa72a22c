# SPDX-License-Identifier: Apache-2.0
"""The benchmarks of servers and GPUs run to their end, in a tiny shape where there is no GPU."""

from __future__ import annotations

import importlib
import json
import pathlib
import re
import time

import pytest
import torch

from benchmark import random_model, request_files
from benchmark.uniform_routing import uniform_routing
from rtp_llm.layers.linear import factory as linear_factory
from rtp_llm.layers.moe import gate
from rtp_llm.testing.server_processes import REAL

TINY = ["--shape", "tiny", "--quick", "--setting", "kv_cache_mem_mb=64"]
NEXT = [*TINY[2:], "--shape", "tiny-next", "--uniform-routing"]
PROGRAMS = {
    "beam_search": [
        *("--shape", "tiny", "--requests", "2", "--width", "3", "--tokens", "4", "--rounds", "1")
    ],
    "abuse": ["--abuse", "slow headers", "--seconds", "0.2", "--connections", "20"],
    "cpu_speculation": ["--quick", "--batch", "2"],
    "cluster_size": [],
    "disagg": ["--shape", "tiny", "--quick", "--tokens", "40", "--cache-mib", "16"],
    "embeddings": ["--quick", "--rounds", "1", "--length", "mixed", "--batch", "3"],
    "fairness": ["--seconds", "1", "--rounds", "1", "--interval", "0.5", "--clients", "10"],
    "fused_rope_steps": [*TINY, "--setting", "max_seq_len=512", "--batch", "2", "--length", "40"],
    "gpu_embeddings": ["--shape", "tiny", "--rounds", "1", "--length", "7", "--batch", "3"],
    "gpu_verify": [*TINY, "--batch", "2"],
    "gpu_first_token": [*TINY, "--setting", "max_seq_len=512", "--length", "40"],
    "gpu_generate": [*TINY, "--batch", "3", "--peer", "eager"],
    "gpu_moe": ["--shape", "tiny", "--tokens", "5", "--quick"],
    "gpu_profile": [*TINY, "--batch", "2"],
    "gpu_ranks": [
        *("--shape", "tiny-mla", "--layers", "2", "--quick", "--batch", "2"),
        *("--setting", "kv_cache_mem_mb=64"),
    ],
    "gpu_serve": [*TINY, "--requests", "3", "--longest", "101", "--clients", "2"],
    "gpu_throughput": [*TINY, "--requests", "3", "--longest", "101"],
    "grammar": ["--shape", "tiny", "--quick", "--batch", "4"],
    "load_ranks": ["--quick"],
    "router_rate": ["--quick", "--workers", "3"],
    "serve_rate": ["--streams", "9", "--tokens", "20", "--endpoint", "chat"],
    "worker_handover": ["--quick", "--ranks", "2"],
    "transfer_rate": ["--quick", "--slices", "16"],
}


TIMELINE = ["--part", "timeline", "--layers", "3", "--rounds", "1"]
CASES = [
    *PROGRAMS.items(),
    ("gpu_verify", [*PROGRAMS["gpu_verify"], "--ngrams", "--prompt", "40"]),
    ("gpu_first_token", [*PROGRAMS["gpu_first_token"], "--prefix", "100"]),
    ("gpu_generate", [*NEXT, "--batch", "3", "--peer", "none", "--mtp", "2"]),
    ("disagg", TIMELINE),
    ("disagg", [*TIMELINE, "--writer-threads", "1", "--writer-threads", "3"]),
]


@pytest.mark.parametrize(("name", "flags"), CASES)
def test_it_runs_and_writes_its_figures(name, flags, tmp_path, monkeypatch, capsys):
    file = tmp_path / "figures.json"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("benchmark.server_process.SERVE", REAL)
    monkeypatch.setattr("sys.argv", [name, *flags, "--json", str(file)])
    importlib.import_module(f"benchmark.{name}").main()
    rows = json.loads(file.read_text())["rows"]
    assert rows and all(any(isinstance(value, float) for value in row.values()) for row in rows)
    assert "| " in capsys.readouterr().out


def test_the_stations_of_a_request_are_files_that_run(tmp_path, monkeypatch, capsys):
    page = (pathlib.Path(__file__).parents[1] / "ARCHITECTURE.md").read_text()
    stations = re.findall(r"^\d+\. `(rtp_llm/[^`]+\.py)`", page, re.MULTILINE)
    file = tmp_path / "figures.json"
    monkeypatch.setattr("benchmark.server_process.SERVE", REAL)
    monkeypatch.setattr("sys.argv", ["request_files", "--json", str(file)])
    request_files.main()
    run = {row["file"] for row in json.loads(file.read_text())["rows"]}
    assert stations and set(stations) <= run
    assert "HTTP" in capsys.readouterr().out


class OneSecond:
    """An engine without a model."""

    def __init__(self, *_of_model):
        pass

    def decode_seconds(self, *_of_step):
        return 1.0

    def prefill_seconds(self, _length):
        return 1.0


@pytest.mark.parametrize("more", [[], ["--cpu-time"]], ids=["elapsed", "cpu-time"])
@pytest.mark.parametrize(("name", "count"), [("cpu_generate", 6), ("cpu_prefill", 8)])
def test_hybrids_against_transformers(name, count, more, tmp_path, monkeypatch):
    file, module = tmp_path / "figures.json", importlib.import_module(f"benchmark.{name}")
    timers = []

    def make(*of_model):
        timers.append(of_model[-1])
        return OneSecond(*of_model)

    for contender in ("OurEngine", "Transformers"):
        monkeypatch.setattr(module, contender, make)
    monkeypatch.setattr(module, "product_rate", lambda _kind: 1e9)
    monkeypatch.setattr(module, "model_folder", lambda _shape: tmp_path)
    flags = ["--shape", "small-next", "--rounds", "1", "--json", str(file)]
    monkeypatch.setattr("sys.argv", [name, *flags, *more])
    module.main()
    rows = json.loads(file.read_text())["rows"]
    assert len(rows) == count
    ratio = {"cpu_generate": "same weights", "cpu_prefill": "x transformers"}[name]
    assert all(row[ratio] == 1.0 for row in rows)
    assert timers == [time.process_time if more else time.perf_counter] * 4


def test_uniform_routing_is_even_and_differs_between_layers():
    weight = torch.zeros(16, 8)
    with uniform_routing():
        first, second = (gate.make_float_product(weight) for _ in range(2))
    assert gate.make_float_product is linear_factory.make_float_product
    x = torch.ones(4000, 8)
    chosen = [product(x, weight).topk(4).indices for product in (first, second)]
    for ids in chosen:
        counts = ids.flatten().bincount(minlength=16)
        assert (counts - 1000).abs().max() < 150  # 27 is the standard deviation
    assert (chosen[0] != chosen[1]).any(dim=1).float().mean() > 0.9
    assert torch.equal(first(x[:9], weight), first(x, weight)[:9])


def test_what_a_hybrid_step_must_read():
    shape, rate = "qwen3-next-24l", 4.22e12  # bytes a second that an H200 copies
    limits = {1: 0.93, 16: 5.8, 64: 14.9, 256: 23.6}
    for batch, milliseconds in limits.items():
        found = 1e3 * random_model.step_bytes(shape, "bfloat16", batch, 192) / rate
        assert found == pytest.approx(milliseconds, rel=0.02)
    for batch, milliseconds in {1: 2.5, 16: 15.4, 64: 22.3}.items():
        read = random_model.step_bytes(shape, "bfloat16", batch, 192, 3)
        read += random_model.draft_bytes(shape, batch, 192, 3)
        assert 1e3 * read / rate == pytest.approx(milliseconds, rel=0.03)
