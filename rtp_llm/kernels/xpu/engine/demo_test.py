# SPDX-License-Identifier: Apache-2.0
"""LLM, the commands and the server over SYCL kernels, with the model that is shipped."""

from __future__ import annotations

import gzip
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM

from example.demo_model.training import sums
from rtp_llm import LLM, SamplingParams, cli, ops
from rtp_llm.device import resolve_device
from rtp_llm.device.xpu import BLOCK_SIZE_VARIABLE
from rtp_llm.testing.models.transformers_models import expected_tokens
from rtp_llm.testing.server.serving import events, wait_for
from rtp_llm.testing.server_processes import REAL, engines, process, read_metrics

DEMO = Path(__file__).parents[4] / "example" / "demo_model"
FLAGS = ["--dtype", "float32", "--num-threads", "1", "--kv-cache-mem-mb", "16"]
FLAGS += ["--max-batch-tokens-size", "256"]  # no long warm-up


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    small = {"num_threads": 1, "kv_cache_mem_mb": 16, "max_batch_tokens_size": 256}
    with LLM(DEMO, dtype="float32", **small) as llm:
        yield llm


def question(a: int, b: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": sums.question(a, b)}]


def test_tokens_are_those_of_transformers(llm: LLM) -> None:
    reference = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32).eval()
    texts = ["What is the capital of France?", "Tell me a short story about a fox.", "What is 7?"]
    prompts = [llm.tokenizer.encode(text) for text in texts]
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    found = llm.generate(prompts, params, use_tqdm=False)
    for prompt, output in zip(prompts, found, strict=True):
        assert output.outputs[0].token_ids == expected_tokens(reference, prompt, 40)


def test_held_out_sums_are_answered(llm: LLM) -> None:
    pairs = sums.held_out_sums(12)
    params = SamplingParams(temperature=0.0, max_tokens=32)
    found = llm.chat([question(*pair) for pair in pairs], params, use_tqdm=False)
    right = sum(out.outputs[0].text == sums.answer(*p) for out, p in zip(found, pairs, strict=True))
    assert right >= 11


def test_explain_and_bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", str(DEMO), *FLAGS]) == 0
    text = capsys.readouterr().out
    assert "device: xpu in host memory (SYCL: " in text
    assert "attention for xpu, float32" in text and "paged (priority 0): chosen" in text
    assert "blocks of 64" in text
    file = tmp_path / "latency.json"
    sizes = ["--input-len", "8", "--output-len", "4", "--batch-size", "2", "--num-iters", "2"]
    saved = ["--num-iters-warmup", "1", "--output-json", str(file)]
    assert cli.main(["bench", "latency", str(DEMO), *FLAGS, *sizes, *saved]) == 0
    assert len(json.loads(file.read_text())["latencies"]) == 2
    random = ["--random-input-len", "70", "--random-output-len", "5", "--num-prompts", "6"]
    asked = [str(DEMO), *FLAGS, *random, "--disable-tqdm", "--output-json", str(file)]
    calls = ops.kernel_calls("paged_attention")
    assert cli.main(["bench", "throughput", *asked]) == 0
    assert ops.kernel_calls("paged_attention") > calls
    assert json.loads(file.read_text())["num_requests"] == 6


@pytest.mark.parametrize(("mask", "entries"), [(None, ["0"]), ("0.1", ["0.1"])])
def test_visible_tiles_and_the_page_size_are_those_of_the_environment(
    mask: str | None, entries: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ZE_AFFINITY_MASK", raising=False)
    if mask is not None:
        monkeypatch.setenv("ZE_AFFINITY_MASK", mask)
    monkeypatch.setenv(BLOCK_SIZE_VARIABLE, "32")
    device = resolve_device()
    assert device.name == "xpu" and [*device.visible_devices().entries] == entries
    assert device.current_index() == 0 and device.default_block_size() == 32


def assert_benches_and_traces(url: str, folder: Path) -> None:
    begun = httpx.post(f"{url}/start_profile", timeout=120).json()
    assert begun == {"activities": ["CPU"]}  # torch for XPUs records these, too
    sizes = ["--random-input-len", "20", "--random-output-len", "4", "--num-prompts", "4"]
    file = ["--save-result", "--result-dir", str(folder), "--result-filename", "bench.json"]
    at = ["--base-url", url, "--tokenizer", str(DEMO), "--disable-tqdm"]
    assert cli.main(["bench", "serve", *at, *sizes, *file]) == 0
    measured = json.loads((folder / "bench.json").read_text())
    assert (measured["completed"], measured["total_output_tokens"]) == (4, 16)
    (trace,) = httpx.post(f"{url}/stop_profile", timeout=120).json()["files"]
    assert b'"rtp_llm::paged_attention"' in gzip.decompress(Path(trace).read_bytes())


def test_a_server_whose_client_leaves_and_whose_engine_dies(tmp_path: Path) -> None:
    pair = sums.held_out_sums(1)[0]
    asked: dict[str, Any] = {"messages": question(*pair), "temperature": 0, "max_tokens": 32}
    long = {"prompt": "Once", "max_tokens": 900, "ignore_eos": True, "stream": True, "n": 2}
    flags = [*FLAGS, "--restart-engine", "1", "--profiler-dir", str(tmp_path)]
    with process(*flags, command=REAL, model=DEMO) as server:
        url = server.url

        def ask(**more: Any) -> httpx.Response:
            body = {**asked, **more}
            return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120)

        def number(name: str) -> float:
            return read_metrics(url)[f"rtp_llm_{name}"]

        before = ask(logprobs=True, top_logprobs=2).json()["choices"][0]
        assert before["message"]["content"] == sums.answer(*pair)
        assert all(len(each["top_logprobs"]) == 2 for each in before["logprobs"]["content"])
        streamed = events(ask(stream=True).text)[:-1]
        pieces = [part["choices"][0]["delta"].get("content") or "" for part in streamed]
        assert "".join(pieces) == sums.answer(*pair)
        assert_benches_and_traces(url, tmp_path)
        schema = {"name": "sum", "schema": {"enum": ["yes", "no"]}}
        shaped = ask(response_format={"type": "json_schema", "json_schema": schema}).json()
        assert json.loads(shaped["choices"][0]["message"]["content"]) in ("yes", "no")
        free = number("kv_cache_free_blocks")
        with httpx.stream("POST", f"{url}/v1/completions", json=long, timeout=120) as got:
            next(got.iter_text())
        wait_for(lambda: number("running_sequences") == 0, 120)
        wait_for(lambda: number("kv_cache_free_blocks") >= free, 120)
        (engine,) = engines(server.process.pid)
        os.kill(engine, signal.SIGKILL)
        wait_for(lambda: number("engine_restarts_total") == 1, 120)
        wait_for(lambda: httpx.get(f"{url}/health").status_code == 200, 120)
        assert ask(logprobs=True, top_logprobs=2).json()["choices"][0] == before
