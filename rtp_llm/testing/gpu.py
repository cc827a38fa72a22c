# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin: tests make their tensors on the GPU. Without one there is nothing to run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch


def pytest_configure() -> None:
    """Called by pytest before any test module is imported."""
    if not torch.cuda.is_available():
        pytest.exit("Skipped: this machine has no GPU that its PyTorch can use.", returncode=0)
    torch.set_default_device("cuda")


def captured(step: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
    """The replay of `step`, which has run before and while it was captured, and its results."""
    device: Any = torch.cuda  # whose classes have no types
    stream = device.Stream()
    stream.wait_stream(device.current_stream())
    with device.stream(stream):
        step()
    device.current_stream().wait_stream(stream)
    graph = device.CUDAGraph()
    with device.graph(graph):
        results = step()
    return graph.replay, results
