# SPDX-License-Identifier: Apache-2.0
"""Tests of what an installation and a machine say about devices."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys

import pytest

from rtp_llm.device.built import (
    BUILD_RECORD,
    TorchBuild,
    accelerators_present,
    built_devices,
    built_targets,
    describe_build,
    torch_build,
)

KNOWN = ("cuda", "xpu", "cpu")


@pytest.fixture
def package(tmp_path):
    folder = tmp_path / "tree/rtp_llm"
    (folder / "lib").mkdir(parents=True)
    return folder


def test_the_wheels_record_decides(package):
    (package / "lib/librtp_llm_xpu.so").touch()
    record = package / "_build.json"
    assert built_targets(package) == ()
    record.write_text(json.dumps({"device": "cuda", "targets": ["sm_80", "sm_90a"]}))
    assert built_devices(KNOWN, package, {}) == ("cuda", "cpu")
    assert built_targets(package) == ("sm_80", "sm_90a")
    record.write_text(json.dumps({"device": "cpu"}))
    environ = {"RTP_LLM_OPS_LIBRARY": "/x/librtp_llm_cuda.so"}
    assert built_devices(KNOWN, package, environ) == ("cpu",)


def test_a_source_tree_has_the_device_of_its_operator_library(package):
    assert built_devices(KNOWN, package, {}) == KNOWN
    (package.parent / BUILD_RECORD).write_text(json.dumps({"cuda": {}, "cpu": {}}))
    assert built_devices(KNOWN, package, {}, "cpu") == ("cpu",)
    assert built_devices(KNOWN, package, {}, "cuda") == ("cuda", "cpu")
    assert built_devices(KNOWN, package, {}, "xpu") == ("cpu",)
    (package.parent / BUILD_RECORD).write_text(json.dumps({"cuda": {}}))
    assert built_devices(KNOWN, package, {}, "cpu") == ("cuda", "cpu")
    (package / "lib/librtp_llm_xpu.so").touch()
    assert built_devices(KNOWN, package, {}) == ("xpu", "cpu")
    environ = {"RTP_LLM_OPS_LIBRARY": "/x/librtp_llm_cuda.so"}
    assert built_devices(KNOWN, package, environ) == ("cuda", "cpu")
    assert built_devices(KNOWN, package, {"RTP_LLM_OPS_LIBRARY": "/x/mine.so"}) == KNOWN
    environ = {"RTP_LLM_OPS_LIBRARY": "/x/librtp_llm_xpu_bridge.so"}
    assert built_devices(KNOWN, package, environ) == KNOWN


@pytest.mark.parametrize(
    ("lines", "device"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\nxpu: Optional[str] = None", "cpu"),
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None", "cuda"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '7.2.5'", "rocm"),
        ("cuda = None\nxpu: Optional[str] = '20260200'", "xpu"),
    ],
)
def test_the_device_of_a_torch(tmp_path, lines, device):
    file = tmp_path / "version.py"
    file.write_text(f"__version__ = '2.13.0+x'\n{lines}\n")
    assert torch_build(file) == TorchBuild("2.13.0+x", device)


def test_the_build_and_its_torch_are_described(package):
    version = importlib.metadata.version("torch")
    expected = f"wheel with kernels for cuda, cpu; torch {version}, for {torch_build().device}"
    (package / "_build.json").write_text(json.dumps({"device": "cuda"}))
    assert describe_build(KNOWN, package) == expected


def test_the_installed_torch_is_read_without_importing_it():
    code = "import sys; from rtp_llm.device.built import torch_build as t; print(t().version)"
    code += "; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == importlib.metadata.version("torch")


def test_accelerators_are_found_by_device_files(tmp_path):
    assert accelerators_present(tmp_path) == []
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "kfd"):
        (tmp_path / "dev" / name).touch()
    for number, vendor in ((128, "0x10de"), (129, "0x8086")):
        folder = tmp_path / f"sys/class/drm/renderD{number}/device"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(vendor + "\n")
    assert accelerators_present(tmp_path) == ["an NVIDIA GPU", "an AMD GPU", "an Intel GPU"]
