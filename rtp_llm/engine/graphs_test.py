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
from rtp_llm.engine import build
from rtp_llm.engine.memory_estimate import explain_graphs
from rtp_llm.testing.transformers_models import save_model
from rtp_llm.worker.graphs.capture_sizes import GraphSize, graph_sizes
from rtp_llm.worker.warm_up import StepLimits

PLAN = SimpleNamespace(max_model_len=64, block_size=16)
LIMITS = StepLimits(max_batch_tokens=512, max_running=8, max_model_len=128, block_size=16)


def captured(name, answer, moe=None, limits=LIMITS, proven=True, **settings):
    """What a runner is told to capture."""
    device = SimpleNamespace(
        name=name, supports=lambda _: answer, asynchronous=True, graphs_by_default=proven
    )
    model, calls = torch.nn.Module(), []
    model.config = SimpleNamespace(moe=moe, has_drafts=False)
    sizes = build._sizes_to_capture(Settings(model="m", **settings), model, device, limits)
    runner = SimpleNamespace(capture_graphs=lambda *arguments: calls.append(arguments))
    build._capture_graphs(runner, sizes, PLAN)
    return calls


@pytest.fixture(autouse=True)
def all_operators(monkeypatch):
    monkeypatch.setattr(build, "missing_operators", lambda device: [])


@pytest.mark.parametrize(
    ("asked", "expected"), [(True, [(graph_sizes(512, 8, 0), 64, 16, None)]), (False, [])]
)
def test_graphs_are_captured_where_they_can_be(asked, expected):
    yes = Support.yes()
    assert captured("cuda", yes, max_running_requests=8, enable_cuda_graph=asked) == expected


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


@pytest.mark.parametrize(("asked", "count"), [(None, 0), (False, 0), (True, 1)])
def test_where_no_graph_has_run_yet_one_must_ask_for_them(asked, count, caplog):
    made = captured("rocm", Support.yes(), proven=False, enable_cuda_graph=asked)
    assert len(made) == count
    told = "no graph has run on rocm yet; enable_cuda_graph on captures them" in caplog.text
    assert told is (asked is None)


def test_amd_gpus_are_the_ones_on_which_none_has_run():
    assert CudaDevice.graphs_by_default and not RocmDevice.graphs_by_default


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "graphs: none: A CPU step"),
        ({"enable_cuda_graph": False}, "graphs: none: enable_cuda_graph is off"),
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
            f"drafts of up to 512 tokens; about {4 * len(sizes)} MiB beside the results of a step"
        )


def test_references_are_not_captured(monkeypatch, caplog):
    monkeypatch.setattr(build, "missing_operators", lambda device: ["linear"])
    assert not captured("cuda", Support.yes())
    assert "PyTorch stands in for linear" in caplog.text
