# SPDX-License-Identifier: Apache-2.0
"""Tests of the CPU device: memory and cores under a container's limits."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity

from rtp_llm.device import CAPABILITIES, DeviceError, Ranks
from rtp_llm.device.cpu import CpuDevice

GIB = 2**30


def machine(tmp_path, files):
    files = {"proc/meminfo": "MemTotal: 33554432 kB\nMemAvailable: 16777216 kB\n", **files}
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return CpuDevice(tmp_path)


def test_memory_without_a_limit_is_the_machines(tmp_path):
    info = machine(tmp_path, {"sys/fs/cgroup/memory.max": "max\n"}).memory_info()
    assert (info.free, info.total) == (16 * GIB, 32 * GIB)


def test_memory_is_limited_by_the_control_group(tmp_path):
    files = {
        "sys/fs/cgroup/memory.max": str(8 * GIB),
        "sys/fs/cgroup/memory.current": str(5 * GIB),
        "sys/fs/cgroup/memory.stat": f"anon 1\ninactive_file {2 * GIB}\n",
    }
    info = machine(tmp_path, files).memory_info()
    assert (info.free, info.total) == (5 * GIB, 8 * GIB)


def test_the_first_version_of_control_groups_counts_too(tmp_path):
    files = {
        "sys/fs/cgroup/memory/memory.limit_in_bytes": str(4 * GIB),
        "sys/fs/cgroup/memory/memory.usage_in_bytes": str(1 * GIB),
    }
    info = machine(tmp_path, files).memory_info()
    assert (info.free, info.total) == (3 * GIB, 4 * GIB)


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        ({"sys/fs/cgroup/cpu.max": "max 100000"}, None),
        ({"sys/fs/cgroup/cpu.max": "100000 100000"}, 1),
        ({"sys/fs/cgroup/cpu.max": "50000 100000"}, 1),
        (
            {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            2,
        ),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1"}, None),
        (
            {
                "proc/self/cgroup": "1:name=systemd:/x\n0::/services/llm\n",
                "sys/fs/cgroup/services/llm/cpu.max": "100000 100000",
            },
            1,
        ),
        (
            {
                "proc/self/cgroup": "0::/services/llm\n",
                "sys/fs/cgroup/services/cpu.max": "90000 100000",
                "sys/fs/cgroup/services/llm/cpu.max": "max 100000",
            },
            1,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/llm\n",
                "sys/fs/cgroup/cpu,cpuacct/llm/cpu.cfs_quota_us": "50000",
                "sys/fs/cgroup/cpu,cpuacct/llm/cpu.cfs_period_us": "50000",
            },
            1,
        ),
    ],
)
def test_threads_follow_the_cpu_quota(tmp_path, files, limit, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(5)))
    assert machine(tmp_path, files).default_threads() == (limit or 5)


def test_threads_follow_the_affinity():
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert CpuDevice().default_threads() == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_stats_of_this_machine():
    device = CpuDevice()
    info = device.memory_info()
    assert 0 < info.free <= info.total
    assert device.memory_used() > 10 * 2**20
    before = device.memory_used()
    block = torch.ones(64 * 2**20, dtype=torch.uint8)
    assert device.memory_used() - before > 0.9 * block.numel()
    assert device.description().startswith("CPU (")
    assert device.shares_memory


def test_the_peak_is_that_since_it_was_reset():
    device = CpuDevice()
    device.reset_peak_memory()
    before = device.peak_memory()
    block = torch.ones(64 * 2**20, dtype=torch.uint8)
    size = block.numel()
    del block
    assert device.peak_memory() - before > 0.9 * size
    device.reset_peak_memory()
    assert device.peak_memory() - before < 0.5 * size


def test_every_capability_has_an_answer_and_every_no_a_reason():
    device = CpuDevice()
    answers = {name: device.supports(name) for name in CAPABILITIES}
    assert all(answer or answer.reason for answer in answers.values())
    assert answers["bfloat16"]
    assert not answers["graph_capture"]
    with pytest.raises(ValueError, match="unknown capability 'teleport'"):
        device.supports("teleport")


def test_work_is_done_when_a_call_returns():
    device = CpuDevice()
    array = np.arange(3, dtype=np.int32)
    tensor = device.upload(array)
    array[0] = 7
    assert tensor.tolist() == [7, 1, 2], "nothing is copied"
    (back,) = device.download(tensor)
    assert back.ctypes.data == tensor.data_ptr()
    assert not device.pinned_empty((2,), torch.int32).is_pinned()
    first, last = device.new_event(timed=True), device.new_event(timed=True)
    first.record()
    stream = device.new_stream()
    with device.use_stream(stream):
        stream.wait_stream(device.current_stream())
        stream.wait_event(first)
        first.wait()
        first.synchronize()
    last.record(stream)
    assert first.query() and stream.query()
    assert first.elapsed_time(last) >= 0
    device.make_current()
    device.synchronize()
    stream.synchronize()
    device.empty_cache()


def test_the_cpu_is_one_device_without_an_index():
    device = CpuDevice()
    assert str(device.torch_device) == "cpu"
    assert (device.device_count(), device.current_index()) == (1, 0)
    assert (device.collectives, device.profiler_activity) == ("gloo", ProfilerActivity.CPU)
    assert device.default_block_size() == 16
    device.check_group(Ranks(world_size=3))


def test_there_are_no_graphs():
    with pytest.raises(DeviceError, match="cpu captures no graphs: a CPU step has no launch queue"):
        CpuDevice().new_graph()
