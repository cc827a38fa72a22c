# SPDX-License-Identifier: Apache-2.0
"""Tests of choosing the device."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading

import pytest

from rtp_llm.device import DEVICE_VARIABLE, DeviceError
from rtp_llm.device.resolve import CLASS_VARIABLE, Resolver
from rtp_llm.device.rocm import RocmDevice
from rtp_llm.testing.fake_torch import FakeTorch

ALL = ("cuda", "rocm", "xpu", "cpu")


def resolver(built=("cpu",), present=(), environ=None, **counts):
    return Resolver(FakeTorch(**counts), environ or {}, lambda: built, lambda: list(present))


def resolved(requested=None, **machine):
    return resolver(**machine).resolve(requested).name


# Built for, usable devices, what was asked -> what is taken.
TABLE = [
    (("cpu",), {}, "auto", "cpu"),
    (("cpu",), {"cuda": 1}, "auto", "cpu"),
    (("cpu",), {"cuda": 1}, "cpu", "cpu"),
    (("cuda", "cpu"), {"cuda": 1}, "auto", "cuda"),
    (("cuda", "cpu"), {"cuda": 1}, "cpu", "cpu"),
    (("cuda", "cpu"), {"cuda": 0}, "auto", "cpu"),
    (("cuda", "cpu"), {}, "cpu", "cpu"),
    (("cuda", "cpu"), {"xpu": 1}, "cpu", "cpu"),
    (("rocm", "cpu"), {"rocm": 2}, "auto", "rocm"),
    (("rocm", "cpu"), {"rocm": 2}, "rocm", "rocm"),
    (("rocm", "cpu"), {"rocm": 0}, "auto", "cpu"),
    (("rocm", "cpu"), {"cuda": 2}, "cpu", "cpu"),
    (("xpu", "cpu"), {"xpu": 1}, "auto", "xpu"),
    (("xpu", "cpu"), {"xpu": 1, "cuda": 1}, "auto", "xpu"),
    (ALL, {"xpu": 1}, "auto", "xpu"),
    (ALL, {"xpu": 1, "cuda": 1}, "auto", "cuda"),
    (ALL, {"xpu": 1, "rocm": 1}, "auto", "rocm"),
    (ALL, {"xpu": 1, "cuda": 1}, "xpu", "xpu"),
    (ALL, {}, "auto", "cpu"),
]


@pytest.mark.parametrize(("built", "counts", "requested", "expected"), TABLE)
@pytest.mark.parametrize("by_variable", [False, True])
def test_the_override_then_the_first_usable_device(built, counts, requested, expected, by_variable):
    if by_variable:
        environ = {DEVICE_VARIABLE: f" {requested.upper()}\n"}
        assert resolved(None, built=built, environ=environ, **counts) == expected
    else:
        assert resolved(requested, built=built, **counts) == expected


@pytest.mark.parametrize(
    ("built", "counts", "requested", "message"),
    [
        (ALL, {}, "tpu", r"RTP_LLM_DEVICE_TYPE\) is not a device; valid: auto, cuda, .*, cpu"),
        (ALL, {}, "ppu", r"=ppu .* has no kernels and no wheel; valid: auto, cuda"),
        (ALL, {}, "yitian", "no wheel"),
        (ALL, {}, "armcpu", "no wheel"),
        (("cpu",), {"cuda": 1}, "cuda", "built for cpu. Install the cuda wheel .*dev build cuda"),
        (("cuda", "cpu"), {"xpu": 1}, "xpu", "built for cuda, cpu"),
        (ALL, {}, "cuda", r"DEVICE_TYPE\) cannot be used here: .* built without CUDA"),
        (ALL, {"cuda": 0}, "cuda", r"finds no such device or driver \(CUDA_VISIBLE_DEVICES="),
        (ALL, {"rocm": 0}, "rocm", r"no such device.*HIP_VISIBLE_DEVICES='7'"),
        (ALL, {"xpu": 0}, "xpu", r"no such device.*ZE_AFFINITY_MASK is not set"),
        (ALL, {"cuda": 1}, "rocm", "built without HIP"),
        (ALL, {"cuda": 1}, "xpu", "built without XPU"),
    ],
)
def test_a_forced_device_that_is_not_usable_is_an_error(built, counts, requested, message):
    environ = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "7"}
    with pytest.raises(DeviceError, match=message):
        resolved(requested, built=built, environ=environ, **counts)
    with pytest.raises(DeviceError, match=message):
        resolved(built=built, environ={**environ, DEVICE_VARIABLE: requested}, **counts)


@pytest.mark.parametrize(
    ("built", "counts", "message"),
    [
        ("cuda", {}, r"the cuda build of rtp-llm, but PyTorch \S+ was built without CUDA"),
        (
            "cuda",
            {"xpu": 1},
            "Install torch for CUDA 13 .*; or serve on the CPU with --device-type",
        ),
        ("rocm", {"cuda": 2}, r"built without HIP\. Install torch for ROCm"),
        (
            "xpu",
            {"cuda": 1},
            r"without XPU\. Install torch for XPU .*_DEVICE_TYPE=cpu",
        ),
    ],
)
def test_a_wheel_with_the_torch_of_another_device_is_refused(built, counts, message):
    with pytest.raises(DeviceError, match=message):
        resolved(built=(built, "cpu"), **counts)


def test_the_users_word_beats_the_variable():
    assert resolved("cpu", environ={DEVICE_VARIABLE: "xpu"}) == "cpu"


def test_the_answer_is_kept_for_the_life_of_the_process():
    environ = {}
    machine = Resolver(fake := FakeTorch(cuda=1), environ, lambda: ("cuda", "cpu"), list)
    first = machine.resolve()
    environ[DEVICE_VARIABLE] = "cpu"
    fake.cuda.count = 0
    assert machine.resolve() is first
    assert machine.resolve("auto") is first
    assert fake.cuda.calls["is_available"] == 1


def test_threads_get_the_same_device():
    machine = resolver(built=ALL, cuda=1)
    found = []
    threads = [threading.Thread(target=lambda: found.append(machine.resolve())) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 16
    assert len(set(map(id, found))) == 1


@pytest.mark.parametrize(
    ("machine", "message"),
    [
        (
            {"present": ["an NVIDIA GPU"]},
            "serving on the CPU: this wheel was built for it, although the machine has an NVIDIA "
            "GPU",
        ),
        (
            {"built": ("cuda", "cpu"), "cuda": 0, "environ": {"CUDA_VISIBLE_DEVICES": " "}},
            "serving on the CPU: cuda: PyTorch finds no such device or driver "
            "(CUDA_VISIBLE_DEVICES=' ')",
        ),
        (
            {"built": ALL, "cuda": 1, "xpu": 1},
            "cuda and xpu can both be used here: cuda is taken; set RTP_LLM_DEVICE_TYPE to choose",
        ),
    ],
)
def test_what_may_surprise_is_said_once(machine, message, caplog):
    several = resolver(**machine)
    with caplog.at_level(logging.WARNING, "rtp_llm.device"):
        several.resolve()
        several.resolve()
    assert [record.message for record in caplog.records] == [message]


@pytest.mark.parametrize(
    "machine", [{}, {"built": ("cuda", "cpu"), "cuda": 1}, {"built": ("xpu", "cpu"), "xpu": 1}]
)
def test_the_expected_choice_needs_no_word(machine, caplog):
    with caplog.at_level(logging.INFO, "rtp_llm.device"):
        resolver(**machine).resolve()
    assert caplog.records == []


def test_a_class_stands_in_for_the_device_that_the_variable_names():
    environ = {CLASS_VARIABLE: "rtp_llm.device.rocm:RocmDevice", DEVICE_VARIABLE: "cuda"}
    machine = resolver(ALL, environ=environ, cuda=1, xpu=1, rocm=1)
    assert type(machine.resolve("cuda")) is type(machine.resolve()) is RocmDevice
    assert machine.resolve("xpu").name == "xpu"
    assert machine.resolve("cpu").name == "cpu"
    del environ[DEVICE_VARIABLE]
    assert resolved("cuda", built=ALL, environ=environ, cuda=1) == "cuda"


def test_a_bad_rank_names_the_variable():
    with pytest.raises(ValueError, match="LOCAL_RANK='one' is not a whole number of at least 0"):
        resolved(built=ALL, cuda=1, environ={"LOCAL_RANK": "one"})


def test_this_machine_gives_a_device_without_any_fake():
    assert Resolver(environ={}, built=lambda: ALL).resolve("cpu").torch_device.type == "cpu"


def test_the_room_imports_nothing_of_the_project():
    code = (
        "import sys, rtp_llm.device;"
        "print([m for m in sys.modules if m.startswith('rtp_llm') "
        "and m != 'rtp_llm' and not m.startswith('rtp_llm.device')])"
    )
    environment = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.strip() == "[]"
