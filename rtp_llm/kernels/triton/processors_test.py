# SPDX-License-Identifier: Apache-2.0
"""Tests of what is asked of the driver about a GPU; nothing of Triton is needed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from rtp_llm.kernels.triton.processors import Processors, processors_of


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Which GPUs the driver was asked about; each has as many multiprocessors as it says here."""
    numbers: list[int] = []

    def properties(index: int) -> dict[str, int]:
        numbers.append(index)
        return {"multiprocessor_count": 100 + index, "max_shared_mem": 1 << 17, "warpSize": 32}

    active = SimpleNamespace(
        utils=SimpleNamespace(get_device_properties=properties),
        get_current_target=lambda: SimpleNamespace(backend="cuda", arch=90 if numbers[-1] else 80),
    )
    triton = SimpleNamespace(runtime=SimpleNamespace(driver=SimpleNamespace(active=active)))
    monkeypatch.setitem(sys.modules, "triton", triton)
    processors_of.cache_clear()
    yield numbers
    processors_of.cache_clear()


def test_the_driver_is_asked_once_for_each_gpu(asked: list[int]) -> None:
    for _ in range(2):
        assert processors_of(torch.device("cuda", 3)) == Processors(103, 1 << 17, overlaps=True)
        assert processors_of(torch.device("cuda")) == Processors(100, 1 << 17, overlaps=False)
    assert asked == [3, 0]


def test_the_interpreter_asks_nobody(asked: list[int]) -> None:
    assert processors_of(torch.device("cpu")) == Processors(1, 0)
    assert not asked
