"""Tests of when an engine records its decode steps, and of what it says when it does not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from rtp_llm.config.settings import Settings
from rtp_llm.device import Support
from rtp_llm.engine import build
from rtp_llm.executor.graph_sizes import graph_sizes
from rtp_llm.executor.warm_up import StepLimits

PLAN = SimpleNamespace(max_model_len=64, block_size=16)
LIMITS = StepLimits(max_batch_tokens=512, max_running=8, max_model_len=128, block_size=16)


class Runner:
    def __init__(self, name, answer):
        self.device = SimpleNamespace(name=name, supports=lambda _: answer)
        self.model = torch.nn.Module()
        self.recorded = []

    def record_graphs(self, *arguments):
        self.recorded.append(arguments)


@pytest.fixture(autouse=True)
def all_operators(monkeypatch):
    monkeypatch.setattr(build, "missing_operators", lambda device: [])


@pytest.mark.parametrize(
    ("asked", "recorded"), [(True, [(graph_sizes(512, 8, 0), 64, 16)]), (False, [])]
)
def test_graphs_are_recorded_where_they_can_be(asked, recorded):
    runner = Runner("cuda", Support.yes())
    settings = Settings(model="m", max_running_requests=8, enable_cuda_graph=asked)
    build._record_graphs(settings, runner, PLAN, LIMITS)
    assert runner.recorded == recorded


@pytest.mark.parametrize(("name", "warnings"), [("xpu", 1), ("cpu", 0)])
def test_an_accelerator_without_graphs_says_so(name, warnings, caplog):
    runner = Runner(name, Support.no("it cannot"))
    build._record_graphs(Settings(model="m"), runner, PLAN, LIMITS)
    assert not runner.recorded
    assert [r.getMessage() for r in caplog.records] == [
        "no graphs are recorded: it cannot"
    ] * warnings


def test_references_are_not_recorded(monkeypatch, caplog):
    monkeypatch.setattr(build, "missing_operators", lambda device: ["linear"])
    runner = Runner("cuda", Support.yes())
    build._record_graphs(Settings(model="m"), runner, PLAN, LIMITS)
    assert not runner.recorded
    assert "PyTorch stands in for linear" in caplog.text
