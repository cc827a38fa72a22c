"""Tests of what an installation and a machine say about devices."""

from __future__ import annotations

import json

import pytest

from rtp_llm.device.built import accelerators_present, built_devices, built_targets

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
    (package.parent / ".rtp_llm_build.json").write_text(json.dumps({"device": "cpu"}))
    assert built_devices(KNOWN, package, {}) == ("cpu",)
    (package / "lib/librtp_llm_xpu.so").touch()
    assert built_devices(KNOWN, package, {}) == ("xpu", "cpu")
    environ = {"RTP_LLM_OPS_LIBRARY": "/x/librtp_llm_cuda.so"}
    assert built_devices(KNOWN, package, environ) == ("cuda", "cpu")
    assert built_devices(KNOWN, package, {"RTP_LLM_OPS_LIBRARY": "/x/mine.so"}) == KNOWN
    environ = {"RTP_LLM_OPS_LIBRARY": "/x/librtp_llm_xpu_bridge.so"}
    assert built_devices(KNOWN, package, environ) == KNOWN


def test_accelerators_are_told_from_device_files(tmp_path):
    assert accelerators_present(tmp_path) == []
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "kfd"):
        (tmp_path / "dev" / name).touch()
    for number, vendor in ((128, "0x10de"), (129, "0x8086")):
        folder = tmp_path / f"sys/class/drm/renderD{number}/device"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(vendor + "\n")
    assert accelerators_present(tmp_path) == ["an NVIDIA GPU", "an AMD GPU", "an Intel GPU"]
