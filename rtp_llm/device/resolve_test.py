"""Tests of choosing the device."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from rtp_llm.device import DEVICE_VARIABLE, DeviceError, Support, resolve, resolve_device
from rtp_llm.device.cpu import CpuDevice


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(resolve, "_resolved", {})
    monkeypatch.delenv(DEVICE_VARIABLE, raising=False)
    monkeypatch.setattr(resolve, "built_devices", lambda: ("cpu",))


@pytest.mark.parametrize("requested", [None, "auto", "", "cpu", " CPU "])
def test_a_cpu_wheel_gives_the_cpu(requested):
    assert resolve_device(requested).name == "cpu"


def test_the_variable_is_trimmed_and_of_any_case(monkeypatch):
    monkeypatch.setenv(DEVICE_VARIABLE, " Cpu\n")
    assert resolve_device().torch_device.type == "cpu"


def test_an_unknown_name_lists_the_valid_ones(monkeypatch):
    monkeypatch.setenv(DEVICE_VARIABLE, "tpu")
    with pytest.raises(DeviceError, match=r"RTP_LLM_DEVICE_TYPE='tpu'.*auto, cpu, cuda, rocm, xpu"):
        resolve_device()


def test_a_device_of_another_wheel_says_which_wheel_brings_it():
    with pytest.raises(DeviceError, match=r"device_type=cuda: .* built for cpu.*dev build cuda"):
        resolve_device("cuda")


def test_the_users_word_beats_the_variable(monkeypatch):
    monkeypatch.setenv(DEVICE_VARIABLE, "xpu")
    assert resolve_device("cpu").name == "cpu"


def test_the_answer_is_kept_for_the_life_of_the_process(monkeypatch):
    first = resolve_device("cpu")
    assert resolve_device("cpu") is first


def test_a_cpu_wheel_on_a_gpu_machine_says_so_once(monkeypatch, caplog):
    monkeypatch.setattr(resolve, "accelerators_present", lambda: ["an NVIDIA GPU"])
    with caplog.at_level(logging.WARNING, "rtp_llm.device"):
        resolve_device()
        resolve_device()
    assert [record.message for record in caplog.records] == [
        "serving on the CPU: this wheel was built for it, although the machine has an NVIDIA GPU"
    ]


def test_a_device_that_cannot_run_gives_its_reason(monkeypatch):
    monkeypatch.setattr(CpuDevice, "available", lambda self: Support.no("no driver"))
    with pytest.raises(DeviceError, match="device cpu cannot be used here: no driver"):
        resolve_device()


def test_the_build_record_decides_what_is_considered(tmp_path, monkeypatch):
    monkeypatch.undo()
    assert resolve.built_devices(tmp_path)[-1] == "cpu"
    (tmp_path / "_build.json").write_text(json.dumps({"device": "cuda"}))
    assert resolve.built_devices(tmp_path) == ("cuda", "cpu")
    (tmp_path / "_build.json").write_text(json.dumps({"device": "cpu"}))
    assert resolve.built_devices(tmp_path) == ("cpu",)


def test_accelerators_are_told_from_device_files(tmp_path):
    assert resolve.accelerators_present(tmp_path) == []
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "kfd"):
        (tmp_path / "dev" / name).touch()
    for number, vendor in ((128, "0x10de"), (129, "0x8086")):
        folder = tmp_path / f"sys/class/drm/renderD{number}/device"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(vendor + "\n")
    assert resolve.accelerators_present(tmp_path) == [
        "an NVIDIA GPU",
        "an AMD GPU",
        "an Intel GPU",
    ]


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
