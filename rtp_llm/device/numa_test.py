# SPDX-License-Identifier: Apache-2.0
"""Tests of the cores nearest to a device."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from rtp_llm.device.cpu import CpuDevice
from rtp_llm.device.cuda import CudaDevice
from rtp_llm.device.numa import cores_of, stay_near
from rtp_llm.testing.fake_torch import FakeBackend, FakeTorch

ADDRESS = "0001:1b:00.0"


@pytest.mark.parametrize(
    ("text", "cores"),
    [("0-3\n", {0, 1, 2, 3}), ("1,4-5,9\n", {1, 4, 5, 9}), ("7", {7}), ("\n", set())],
)
def test_lists_of_cores(tmp_path, text, cores):
    (tmp_path / ADDRESS).mkdir()
    (tmp_path / ADDRESS / "local_cpulist").write_text(text)
    assert cores_of(ADDRESS, tmp_path) == cores


def test_nobody_knows_a_device_that_is_not_there(tmp_path):
    assert cores_of(ADDRESS, tmp_path) == frozenset()


def test_a_gpu_is_found_by_its_place_on_the_bus(monkeypatch):
    queried = []
    monkeypatch.setattr("rtp_llm.device.cuda.cores_of", lambda at: queried.append(at) or {2})
    fake = FakeTorch()
    fake.cuda = FakeBackend(1)
    fake.cuda.properties.pci_domain_id = 1
    fake.cuda.properties.pci_bus_id = 0x1B
    fake.cuda.properties.pci_device_id = 0
    assert CudaDevice(fake, {}).near_cores() == {2}
    assert queried == [ADDRESS]


@pytest.fixture
def affinity(monkeypatch):
    """A process that may run on cores 0 to 3; what it was bound to."""
    bound = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: bound.append(set(cores)))
    return bound


@pytest.mark.parametrize(
    ("near", "expected"),
    [({2, 3, 4, 5}, [{2, 3}]), ({0, 1, 2, 3, 4}, []), ({8, 9}, []), (set(), [])],
    ids=["some of them", "all of them", "none that it may use", "unknown"],
)
def test_a_process_stays_on_the_cores_that_it_may_use(affinity, near, expected):
    stay_near(SimpleNamespace(near_cores=lambda: near, torch_device="cuda:1"))
    assert affinity == expected


def test_a_cpu_is_near_to_all_cores(affinity):
    stay_near(CpuDevice())
    assert affinity == []
