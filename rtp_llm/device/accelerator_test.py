# SPDX-License-Identifier: Apache-2.0
"""Tests of the GPU devices over a torch whose devices do not exist."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity

from rtp_llm.device import CAPABILITIES, DeviceError, Ranks
from rtp_llm.device.base import MemoryInfo
from rtp_llm.device.cuda import CudaDevice
from rtp_llm.device.rocm import RocmDevice
from rtp_llm.device.xpu import XpuDevice
from rtp_llm.testing.fake_torch import GIB, FakeBackend, FakeEvent, FakeTorch

KINDS = {"cuda": CudaDevice, "rocm": RocmDevice, "xpu": XpuDevice}
PARTS = {"cuda": "CUDA", "rocm": "HIP", "xpu": "XPU"}
EACH = pytest.mark.parametrize("name", KINDS)


def made(name, environ=None, count=2):
    fake = FakeTorch(**{name: count})
    return KINDS[name](fake, environ or {}), fake


def backend(device):
    return device._backend


@EACH
def test_a_device_string_has_the_local_rank(name):
    torch_type = "xpu" if name == "xpu" else "cuda"
    assert str(made(name)[0].torch_device) == f"{torch_type}:0"
    device, _ = made(name, {"LOCAL_RANK": "1"})
    assert str(device.torch_device) == f"{torch_type}:1"
    assert device.available()


@EACH
def test_what_is_missing_is_named(name):
    device = KINDS[name](FakeTorch(), {})
    assert f"was built without {PARTS[name]}" in device.available().reason
    device, fake = made(name, count=0)
    assert "finds no such device or driver" in device.available().reason
    delattr(fake, device.torch_type)
    assert device.available().reason == f"this PyTorch has no module torch.{device.torch_type}"
    device, _ = made(name, {"LOCAL_RANK": "2"})
    assert "LOCAL_RANK=2 has no device: 2 visible" in device.available().reason


@EACH
def test_this_pytorch_has_none_or_says_so(name):
    device = KINDS[name](torch, {})
    answer = device.available()
    assert answer or answer.reason


@EACH
def test_without_a_device_nothing_takes_the_first_one(name):
    device = KINDS[name](torch, {})
    if device.device_count():
        pytest.skip(f"torch.{device.torch_type} has devices here")
    assert device.visible_devices().entries == ()
    with pytest.raises(DeviceError, match=r"current device is unknown .* visible devices: none"):
        device.current_index()
    with pytest.raises(DeviceError, match="no device is visible"):
        device.check_group(Ranks(world_size=2))


@pytest.mark.parametrize(
    ("capability", "supported"), [((7, 5), False), ((8, 0), True), ((9, 0), True), ((12, 1), True)]
)
def test_a_gpu_below_the_kernels_floor_is_refused(capability, supported):
    device, fake = made("cuda")
    fake.cuda = FakeBackend(1, capability, "Fake T4")
    answer = device.available()
    assert bool(answer) is supported
    assert supported or answer.reason == (
        "Fake T4 has compute capability 7.5, below the 8.0 that the kernels are compiled for"
    )


@pytest.mark.parametrize(
    ("targets", "capability", "supported"),
    [
        (("sm_80", "sm_90a"), (8, 0), True),
        (("sm_80", "sm_90a"), (8, 9), True),
        (("sm_80", "sm_90a"), (9, 0), True),
        (("sm_80", "sm_90a"), (10, 3), True),  # from PTX
        (("sm_90a",), (9, 0), True),
        (("sm_90a",), (8, 0), False),
        (("sm_90a",), (10, 0), False),
        (("sm_86",), (8, 0), False),
        (("sm_80", "sm_90"), (8, 6), True),
        (("sm_100f",), (10, 0), True),
        (("sm_120",), (9, 0), False),
        ((), (8, 0), True),
    ],
)
def test_a_gpu_that_no_cuda_kernel_was_compiled_for_is_refused(targets, capability, supported):
    fake = FakeTorch(cuda=1)
    fake.cuda = FakeBackend(1, capability)
    answer = CudaDevice(fake, {}, targets).available()
    assert bool(answer) is supported
    assert supported or f"the kernels are compiled for {', '.join(targets)}" in answer.reason


@pytest.mark.parametrize(
    ("targets", "processor", "supported"),
    [
        (("gfx90a",), "gfx90a:sramecc+:xnack-", True),
        (("gfx90a:xnack-",), "gfx90a:sramecc+:xnack-", True),
        (("gfx90a:xnack+",), "gfx90a:sramecc+:xnack-", False),
        (("gfx90a", "gfx942"), "gfx942:sramecc+:xnack-", True),
        (("gfx90a",), "gfx1100", False),
        ((), "gfx1100", True),
    ],
)
def test_a_gpu_that_no_hip_kernel_was_compiled_for_is_refused(targets, processor, supported):
    fake = FakeTorch(rocm=1)
    fake.cuda = FakeBackend(1, processor=processor)
    answer = RocmDevice(fake, {}, targets).available()
    assert bool(answer) is supported
    assert supported or f"is a {processor}; the kernels are compiled for" in answer.reason


@pytest.mark.parametrize(
    ("processor", "kind"),
    [
        ("gfx90a:sramecc+:xnack-", torch.float8_e4m3fnuz),
        ("gfx942:sramecc+:xnack-", torch.float8_e4m3fnuz),
        ("gfx950:sramecc+:xnack-", torch.float8_e4m3fn),
        ("gfx1100", torch.float8_e4m3fnuz),
        ("gfx1201", torch.float8_e4m3fn),
    ],
)
def test_the_8_bit_floats_are_those_of_the_device(processor, kind):
    fake = FakeTorch(rocm=1)
    fake.cuda = FakeBackend(1, processor=processor)
    assert RocmDevice(fake, {}, ()).float8() is kind
    assert made("cuda")[0].float8() is torch.float8_e4m3fn


def test_a_ppu_does_not_pass_for_cuda():
    device, _ = made("cuda", {"PPU_HOME": "/usr/local/ppu"})
    assert "PPU_HOME is set" in device.available().reason


@EACH
def test_every_capability_has_an_answer_and_every_no_a_reason(name):
    device, _ = made(name)
    answers = {feature: device.supports(feature) for feature in CAPABILITIES}
    assert all(answer or answer.reason for answer in answers.values())
    assert set(device.refused) <= set(CAPABILITIES)
    assert answers["bfloat16"] and answers["pinned_memory"]
    assert bool(answers["graph_capture"]) is (name != "xpu")


def test_only_hip_needs_watchers_of_collectives_to_wait():
    wanted = {name: dict(kind.collectives_environment) for name, kind in KINDS.items()}
    hip = {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
        "TORCH_NCCL_BLOCKING_WAIT": "1",
        "TORCH_NCCL_ENABLE_MONITORING": "0",
    }
    assert wanted == {"cuda": {}, "rocm": hip, "xpu": {}}


def test_names_that_torch_knows_them_by():
    assert [KINDS[name].collectives for name in KINDS] == ["nccl", "nccl", "xccl"]
    assert [KINDS[name].profiler_activity for name in KINDS] == [
        ProfilerActivity.CUDA,
        ProfilerActivity.CUDA,
        ProfilerActivity.XPU,
    ]


@EACH
def test_collectives_that_this_pytorch_lacks_are_named(name):
    device, fake = made(name)
    assert device.has_collectives()
    fake.backends = {"gloo"}
    reason = f"PyTorch 2.13.0+fake was built without {device.collectives}"
    assert device.has_collectives().reason == reason


@EACH
def test_memory_and_description(name):
    device, _ = made(name)
    info = device.memory_info()
    assert (info.free, info.total) == (62 * GIB, 80 * GIB), "what torch keeps can be taken"
    assert device.memory_used() == 5 * GIB
    assert device.description() == f"{device.torch_device} (Fake GPU 0, 80 GiB)"
    assert device.device_count() == 2
    assert 1 <= device.default_threads() <= 8
    device.reset_peak_memory()
    assert device.peak_memory() == 9 * GIB
    assert not device.shares_memory
    assert device.default_batch_tokens() > 1024
    device.empty_cache()
    device.synchronize()
    calls = {"reset_peak_memory_stats": 1, "empty_cache": 1, "synchronize": 1}
    assert backend(device).calls == calls


@EACH
def test_memory_of_a_dead_process_is_awaited(name, monkeypatch):
    device, _ = made(name)
    frees = iter([10 * GIB, 30 * GIB, 61 * GIB, 62 * GIB])
    monkeypatch.setattr(device, "memory_info", lambda: MemoryInfo(next(frees), 80 * GIB))
    assert device.await_free_memory(60 * GIB, 1000.0) == 61 * GIB
    assert device.await_free_memory(0, 1000.0) == 62 * GIB
    monkeypatch.setattr(device, "memory_info", lambda: MemoryInfo(5 * GIB, 80 * GIB))
    assert device.await_free_memory(60 * GIB, 0.2) == 5 * GIB, "others may have taken it"


@EACH
def test_the_current_device(name):
    device, _ = made(name, {"LOCAL_RANK": "1"})
    assert device.current_index() == 0
    device.make_current()
    assert device.current_index() == 1


@EACH
def test_a_lost_current_device_is_never_device_zero(name):
    device, _ = made(name, {"LOCAL_RANK": "1"})
    backend(device).lost = True
    assert device.current_index() == 1
    for environ in ({}, {"LOCAL_RANK": "2"}):
        device, _ = made(name, environ)
        backend(device).lost = True
        said = environ.get("LOCAL_RANK", "not set")
        with pytest.raises(DeviceError, match=rf"driver lost\); LOCAL_RANK is {said}, .*: 0, 1"):
            device.current_index()


@EACH
@pytest.mark.parametrize(
    ("count", "ranks", "message"),
    [
        (2, Ranks(), None),
        (2, Ranks(world_size=2), None),
        (2, Ranks(world_size=4), None),
        (8, Ranks(world_size=6, local_world_size=3), None),
        (2, Ranks(world_size=3), "world_size 3 must be a multiple of local device count 2"),
        (8, Ranks(world_size=6, local_world_size=4), "multiple of local device count 4"),
        (2, Ranks(world_size=4, local_world_size=4), "LOCAL_WORLD_SIZE=4 processes have 2 devices"),
        (0, Ranks(world_size=2), "no device is visible"),
    ],
)
def test_groups_of_processes_fit_the_devices(name, count, ranks, message):
    device, _ = made(name, count=count)
    if message is None:
        device.check_group(ranks)
    else:
        with pytest.raises(DeviceError, match=message):
            device.check_group(ranks)


@EACH
def test_arrays_go_there_and_back_through_pinned_memory_with_one_wait(name):
    device, fake = made(name)
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    there = device.upload(array)
    array += 1
    assert there.tolist() == [[0, 1, 2], [3, 4, 5]], "the array may be reused at once"
    assert fake.placed == ["cpu", str(device.torch_device)]
    assert not backend(device).events
    back, flags = device.download(there, torch.tensor([True, False]))
    assert back.tolist() == there.tolist()
    assert back.dtype == np.int32
    assert flags.tolist() == [True, False]
    assert fake.pinned == 3
    assert [event.waits for event in backend(device).events] == [1]


@EACH
def test_several_arrays_go_in_one_copy(name):
    device, fake = made(name)
    arrays = [
        np.arange(3, dtype=np.int32),
        np.array([[True], [False]]),
        np.empty((0, 4), np.float32),
        np.arange(12, dtype=np.int64).reshape(3, 4)[:, 1:3],
    ]
    there = device.upload_all(*arrays)
    assert fake.pinned == 1
    for tensor, array in zip(there, arrays, strict=True):
        assert tensor.numpy().dtype == array.dtype
        np.testing.assert_array_equal(tensor.numpy(), array)
        assert tensor.data_ptr() % 16 == 0


@EACH
def test_empty_arrays_and_no_tensors(name):
    device, _ = made(name)
    assert device.upload(np.empty((0, 2), np.int64)).shape == (0, 2)
    assert device.download() == []


@EACH
def test_streams_and_events_are_torchs(name):
    device, _ = made(name)
    stream = device.new_stream()
    assert stream.device == device.torch_device
    with device.use_stream(stream):
        assert device.current_stream() is stream
    assert device.current_stream() is not stream
    assert [device.new_event(timed).enable_timing for timed in (True, False)] == [True, False]
    assert isinstance(device.new_event(), FakeEvent)


@pytest.mark.parametrize("name", ["cuda", "rocm"])
def test_a_failed_capture_ends_and_says_why(name):
    device, fake = made(name)
    graph = device.new_graph()
    with pytest.raises(torch.OutOfMemoryError, match="too much"), graph.capture():
        fake.cuda.captured[-1][0].broken = True
        raise torch.OutOfMemoryError("too much")
    assert not fake.cuda.captured[-1][0].capturing


@pytest.mark.parametrize("name", ["cuda", "rocm"])
def test_graphs_capture_once_and_replay(name):
    device, fake = made(name)
    graph = device.new_graph()
    stream = device.new_stream()
    with graph.capture(stream):
        pass
    other = device.new_graph(graph.pool)
    assert other.pool is graph.pool
    ((captured, pool, on),) = fake.cuda.captured
    assert (pool, on) == (graph.pool, stream)
    graph.replay()
    graph.replay()
    assert captured.replays == 2 and not captured.is_reset
    graph.release()
    assert captured.is_reset


def test_xpu_captures_no_graphs_yet():
    with pytest.raises(DeviceError, match="xpu captures no graphs: SYCL graphs are not used yet"):
        made("xpu")[0].new_graph()


def test_block_sizes():
    assert made("cuda")[0].default_block_size() == 16
    assert made("xpu")[0].default_block_size() == 64
    assert made("xpu", {"XPU_SEQ_SIZE_PER_BLOCK": " 128 "})[0].default_block_size() == 128
    for bad in ("0", "-64", "48", "many", "1.5"):
        device, _ = made("xpu", {"XPU_SEQ_SIZE_PER_BLOCK": bad})
        with pytest.raises(DeviceError, match=r"XPU_SEQ_SIZE_PER_BLOCK=.* positive power of two"):
            device.default_block_size()
