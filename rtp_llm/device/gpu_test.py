# SPDX-License-Identifier: Apache-2.0
"""Tests of the device classes on a real GPU, of whatever vendor; skipped without one."""

from __future__ import annotations

import multiprocessing

import numpy as np
import pytest
import torch

from rtp_llm.device import DeviceError, StagedNumbers
from rtp_llm.device.cuda import CudaDevice
from rtp_llm.device.rocm import RocmDevice
from rtp_llm.device.xpu import XpuDevice

DEVICE = next((d for d in (CudaDevice(), RocmDevice(), XpuDevice()) if d.available()), None)
pytestmark = pytest.mark.skipif(DEVICE is None, reason="no GPU that PyTorch can use")
MIB = 2**20


@pytest.fixture
def device():
    DEVICE.make_current()
    return DEVICE


def busy(device, rounds=20):
    """Queue work that takes some milliseconds."""
    x = torch.ones(4096, 4096, device=device.torch_device)
    for _ in range(rounds):
        x = x @ x * 1e-4
    return x


def test_it_says_what_it_is(device):
    assert device.device_count() == len(device.visible_devices().entries) >= 1
    assert device.current_index() == device.torch_device.index
    assert str(device.torch_device) in device.description()


def test_memory_follows_allocations(device):
    device.empty_cache()
    before, used = device.memory_info(), device.memory_used()
    block = torch.empty(256 * MIB, dtype=torch.uint8, device=device.torch_device)
    after = device.memory_info()
    assert before.total == after.total
    assert before.free - after.free >= 255 * MIB
    assert device.memory_used() - used >= 256 * MIB
    del block
    assert device.memory_info().free > after.free, "what torch keeps can be taken"
    assert device.peak_memory() - used >= 256 * MIB
    device.empty_cache()
    device.reset_peak_memory()
    assert device.peak_memory() - used < 256 * MIB


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32, np.bool_])
def test_arrays_go_there_and_back(device, dtype):
    array = np.arange(100_000).astype(dtype).reshape(100, -1)
    expected = array.copy()
    busy(device)
    there = device.upload(array)
    array[:] = 0
    assert there.device == device.torch_device
    back, first = device.download(there, there[:, 0])
    np.testing.assert_array_equal(back, expected)
    np.testing.assert_array_equal(first, expected[:, 0])


def test_many_uploads_in_flight_keep_their_values(device):
    busy(device)
    array = np.empty(1000, np.int32)
    there = []
    for number in range(200):
        array[:] = number
        there.append(device.upload(array))
    for number, back in enumerate(device.download(*there)):
        assert (back == number).all()


def test_staged_numbers_do_not_overtake_each_other(device):
    numbers = StagedNumbers(device, 100_000)
    seen = []
    for step in range(20):
        busy(device, 1)
        numbers.begin()[:] = step
        numbers.send(100_000)
        seen.append(numbers.on_device.clone())
    for step, back in enumerate(device.download(*seen)):
        assert (back == step).all()


def test_host_buffers_are_pinned(device):
    assert device.pinned_empty((3, 4), torch.int32).is_pinned()


def test_streams_wait_for_events(device):
    device.synchronize()
    stream, begin, end = device.new_stream(), device.new_event(True), device.new_event(True)
    begin.record()
    stream.wait_stream(device.current_stream())
    with device.use_stream(stream):
        x = busy(device)
        end.record()
    device.current_stream().wait_event(end)
    total = x.sum()
    end.synchronize()
    assert end.query()
    assert begin.elapsed_time(end) > 0
    assert bool(device.download(total.isfinite())[0])


def test_a_graph_replays_on_new_input(device):
    if not device.supports("graph_capture"):
        with pytest.raises(DeviceError, match="captures no graphs"):
            device.new_graph()
        return
    x = torch.zeros(1000, device=device.torch_device)
    stream = device.new_stream()
    with device.use_stream(stream):
        (x * 2 + 1).sum()  # what capture must not load or allocate for the first time
    device.synchronize()
    first = device.new_graph()
    with first.capture(stream):
        y = x * 2 + 1
    second = device.new_graph(first.pool)
    with second.capture(stream):
        z = y.cumsum(0)
    for value in (1.0, 5.0):
        x.fill_(value)
        first.replay()
        second.replay()
        back, total = device.download(y, z[-1])
        assert (back == 2 * value + 1).all()
        assert total == 1000 * (2 * value + 1)


def map_in_another_process(handle, answers):
    DEVICE.make_current()
    memory = DEVICE.ipc_memory(16, 7)
    answers.send(memory.open(handle) != 0)
    with pytest.raises(DeviceError):
        memory.open(bytes(64))
    answers.send((torch.ones(3, device=DEVICE.torch_device) + 1).tolist())


def test_another_process_maps_its_memory(device):
    if not isinstance(device, CudaDevice):
        with pytest.raises(DeviceError, match="other processes cannot map memory of"):
            device.ipc_memory(16, 7)
        return
    memory = device.ipc_memory(1000, -(2**31))
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=map_in_another_process, args=(memory.handle(), theirs))
    child.start()
    theirs.close()
    assert ours.recv() is True
    # What was refused does not make a later kernel fail.
    assert ours.recv() == [2.0, 2.0, 2.0]
    child.join()
    assert child.exitcode == 0
