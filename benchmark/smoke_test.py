"""The benchmarks of servers and GPUs run to their end, in a tiny shape where there is no GPU."""

from __future__ import annotations

import importlib
import json
import pathlib
import re

import pytest

from benchmark import request_files
from rtp_llm.testing.server_processes import REAL

TINY = ["--shape", "tiny", "--quick", "--setting", "kv_cache_mem_mb=64"]
PROGRAMS = {
    "abuse": ["--abuse", "slow headers", "--seconds", "0.2", "--connections", "20"],
    "cpu_speculation": ["--quick", "--batch", "2"],
    "disagg": ["--shape", "tiny", "--quick", "--tokens", "40", "--cache-mib", "16"],
    "fused_rope_steps": [*TINY, "--setting", "max_seq_len=512", "--batch", "2", "--length", "40"],
    "gpu_verify": [*TINY, "--batch", "2"],
    "gpu_first_token": [*TINY, "--setting", "max_seq_len=512", "--length", "40"],
    "gpu_generate": [*TINY, "--batch", "3", "--peer", "eager"],
    "gpu_moe": ["--shape", "tiny", "--tokens", "5", "--quick"],
    "gpu_profile": [*TINY, "--batch", "2"],
    "gpu_ranks": [
        *("--shape", "tiny-moe", "--layers", "2", "--quick", "--tokens", "5", "--batch", "2"),
        *("--setting", "kv_cache_mem_mb=64"),
    ],
    "gpu_serve": [*TINY, "--requests", "3", "--longest", "101", "--clients", "2"],
    "gpu_throughput": [*TINY, "--requests", "3", "--longest", "101"],
    "serve_rate": ["--streams", "9", "--tokens", "20", "--endpoint", "chat"],
    "worker_handover": ["--quick", "--workers", "1"],
    "transfer_rate": ["--quick", "--slices", "16"],
}


TIMELINE = ["--part", "timeline", "--layers", "3", "--rounds", "1"]
CASES = [
    *PROGRAMS.items(),
    ("gpu_verify", [*PROGRAMS["gpu_verify"], "--ngrams", "--prompt", "40"]),
    ("gpu_first_token", [*PROGRAMS["gpu_first_token"], "--prefix", "100"]),
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
