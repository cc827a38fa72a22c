# SPDX-License-Identifier: Apache-2.0
"""Tests of when an engine captures its decode steps, and of what it says when it does not."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from rtp_llm.config.settings import Settings
from rtp_llm.device import Support
from rtp_llm.device.cpu import CpuDevice
from rtp_llm.device.cuda import CudaDevice
from rtp_llm.device.rocm import RocmDevice
from rtp_llm.engine.ranks.tensor_ranks import TensorRanks
from rtp_llm.engine.start import build_worker, graph_choice
from rtp_llm.engine.start.memory_estimate import explain_graphs
from rtp_llm.engine.start.memory_plan import token_weight_bytes, weight_bytes
from rtp_llm.testing.engine.replays import capture_on_cpu
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.eagle3_models import save_eagle3_head
from rtp_llm.testing.models.mtp_models import save_mtp_model
from rtp_llm.testing.models.open_model import open_model
from rtp_llm.testing.models.transformers_models import save_model
from rtp_llm.worker.inputs.graph_sizes import GraphSize, graph_sizes
from rtp_llm.worker.warm_up import StepLimits

PLAN = SimpleNamespace(max_model_len=64, block_size=16)
LIMITS = StepLimits(max_batch_tokens=512, max_running=8, max_model_len=128, block_size=16)


def captured(name, answer, moe=None, limits=LIMITS, proven=True, **settings):
    """What a runner is told to capture."""
    device = SimpleNamespace(
        name=name, supports=lambda _: answer, asynchronous=True, graphs_by_default=proven
    )
    model, calls = torch.nn.Module(), []
    model.config = SimpleNamespace(num_layers=36, moe=moe, has_drafts=False, encoder=None)
    sizes = build_worker._sizes_to_capture(Settings(model="m", **settings), model, device, limits)
    runner = SimpleNamespace(capture_graphs=lambda *arguments: calls.append(arguments))
    build_worker._capture_graphs(runner, sizes, PLAN, TensorRanks(), None)
    return calls


@pytest.fixture(autouse=True)
def all_operators(monkeypatch):
    monkeypatch.setattr(build_worker, "missing_operators", lambda device: [])


@pytest.mark.parametrize(
    ("enable_graphs", "expected"),
    [(True, [(graph_sizes(512, 8, 0), 64, 16, None, None)]), (False, [])],
)
def test_graphs_are_captured_where_they_can_be(enable_graphs, expected):
    yes = Support.yes()
    assert captured("cuda", yes, max_running_requests=8, enable_graphs=enable_graphs) == expected


def test_steps_with_drafts_are_captured():
    limits = replace(LIMITS, max_draft_tokens=3)
    ((sizes, *_),) = captured("cuda", Support.yes(), limits=limits, max_running_requests=8)
    assert sizes == graph_sizes(512, 8, 0, 3)
    assert GraphSize(32, 8, 4) in sizes


@pytest.mark.parametrize(("name", "warnings"), [("xpu", 1), ("cpu", 0)])
def test_an_accelerator_without_graphs_says_so(name, warnings, caplog):
    assert not captured(name, Support.no("it cannot"))
    assert [r.getMessage() for r in caplog.records] == [
        "no graphs are captured: it cannot"
    ] * warnings


@pytest.mark.parametrize(("capacity", "most"), [(None, 256), (6, 6)])
def test_ranks_capture_what_messages_of_fixed_size_hold(capacity, most):
    settings = {"data_parallel_size": 2, "max_running_requests": 8, "expert_capacity": capacity}
    ((sizes, *_),) = captured("cuda", Support.yes(), object(), **settings)
    assert sizes == graph_sizes(most, 8, 0)
    assert max(size.tokens for size in sizes) == most


def test_ranks_whose_messages_have_any_size_capture_nothing(caplog):
    settings = {"data_parallel_size": 2, "expert_capacity": 0}
    assert not captured("cuda", Support.yes(), object(), **settings)
    assert "no graphs are captured: expert_capacity=0" in caplog.text


@pytest.mark.parametrize(("enable_graphs", "count"), [(None, 0), (False, 0), (True, 1)])
def test_where_no_graph_has_run_yet_one_must_ask_for_them(enable_graphs, count, caplog):
    made = captured("rocm", Support.yes(), proven=False, enable_graphs=enable_graphs)
    assert len(made) == count
    told = "no graph has run on rocm yet; enable_graphs on captures them" in caplog.text
    assert told is (enable_graphs is None)


def test_amd_gpus_are_the_ones_on_which_none_has_run():
    assert CudaDevice.graphs_by_default and not RocmDevice.graphs_by_default


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "graphs: none: A CPU step"),
        ({"enable_graphs": False}, "graphs: none: enable_graphs is off"),
    ],
)
def test_explain_says_why_there_are_none(settings, words, tmp_path):
    save_model(tmp_path, "qwen3")
    told = explain_graphs(Settings(model=str(tmp_path), **settings), CpuDevice())
    assert told.lower().startswith(words.lower())


def test_explain_says_what_they_take(tmp_path, monkeypatch):
    monkeypatch.setattr(CpuDevice, "supports", lambda self, feature: Support.yes())
    save_model(tmp_path, "qwen3")
    settings = {"max_running_requests": 20, "max_batch_tokens_size": 512}
    told = [
        explain_graphs(Settings(model=str(tmp_path), **settings, **more), CpuDevice())
        for more in ({}, {"speculative": "ngram", "num_speculative_tokens": 3})
    ]
    plain, drafts = graph_sizes(512, 20, 0), graph_sizes(512, 20, 0, 3)
    for text, sizes in zip(told, (plain, drafts), strict=True):
        assert text == (
            f"graphs: {len(sizes)}, of decode steps of up to 20 sequences, and of prompts and "
            f"drafts of up to 512 tokens; about {4 * len(sizes)} MiB on top of the results of a "
            "step"
        )


@pytest.mark.parametrize(("method", "more"), [("mtp", 1), ("eagle3", 1), ("draft-model", 0)])
def test_graphs_that_extend_are_counted_where_they_are_captured(
    method, more, tmp_path, monkeypatch
):
    """Heads have a graph after sampling, in addition to the graph of each step without prompts."""
    counts = capture_on_cpu(monkeypatch)
    target, folder = tmp_path / "model", tmp_path / "drafts"
    settings = {"speculative": method, "num_speculative_tokens": 3}
    if method == "mtp":
        save_mtp_model(target, "qwen3_5")
    else:
        model = save_model(target, "llama")
        settings["speculative_model"] = str(folder)
        if method == "eagle3":
            save_eagle3_head(folder, model, draft_vocab_size=90)
        else:
            save_model(folder, "llama")
    chosen = {
        **settings,
        "max_running_requests": 4,
        "max_batch_tokens_size": 64,
        "dtype": "float32",
    }
    told = explain_graphs(Settings(model=str(target), **chosen), CpuDevice())
    engine = TinyEngine(target, **chosen)
    while engine.engine.has_idle_work:
        engine.engine.work_idle()
    captured = engine.built.worker.runner._graphs._captured
    assert not counts and len(captured) == len(graph_sizes(64, 4, 0, 3))
    extending = [size for size, each in captured.items() if each.extend is not None]
    assert len(extending) == more * sum(size.is_for_rows(4) for size in captured) >= more
    count = len(captured) + len(extending)
    assert told.startswith(f"graphs: {count}, ")
    worker, limits = engine.built.worker, engine.built.limits
    counted = build_worker._counted(engine.settings, list(captured), worker.runner.model, limits)
    assert counted[0] == count


def test_a_token_computes_with_its_own_experts(tmp_path):
    save_model(tmp_path, "qwen3_5_moe")
    model = open_model(tmp_path)
    moe = model.config.moe
    of_experts = [p.nbytes for name, p in model.named_parameters() if ".experts." in name]
    idle = sum(of_experts) * (moe.num_experts - moe.top_k) // moe.num_experts
    assert 0 < idle == weight_bytes(model) - token_weight_bytes(model)
    save_model(tmp_path / "dense", "qwen3")
    dense = open_model(tmp_path / "dense")
    assert token_weight_bytes(dense) == weight_bytes(dense)


def test_start_and_explain_know_what_a_token_computes_with(tmp_path, monkeypatch):
    asked = []

    def sizes(most, running, weights, drafts, of_token, work):
        asked.append((weights, of_token))
        return graph_sizes(most, running, weights, drafts, of_token, work)

    monkeypatch.setattr(graph_choice, "graph_sizes", sizes)
    capture_on_cpu(monkeypatch)
    save_model(tmp_path, "qwen3_5_moe")
    settings = {"dtype": "float32", "max_running_requests": 4}
    explain_graphs(Settings(model=str(tmp_path), **settings), CpuDevice())
    TinyEngine(tmp_path, **settings)
    (weights, of_token), (kept, of_token_kept) = asked
    assert weights - of_token == kept - of_token_kept > 0


def test_references_are_not_captured(monkeypatch, caplog):
    monkeypatch.setattr(build_worker, "missing_operators", lambda device: ["linear"])
    assert not captured("cuda", Support.yes())
    assert "PyTorch stands in for linear" in caplog.text
