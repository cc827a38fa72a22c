# SPDX-License-Identifier: Apache-2.0
"""Finding the native libraries: the order of the places, and what each error says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rtp_llm import native
from rtp_llm.device.built import TorchBuild


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty package in a source tree, seen by `native` as its own; no variables, no modules."""
    folder = tmp_path / "rtp_llm"
    folder.mkdir()
    monkeypatch.setattr(native, "_PACKAGE", folder)
    monkeypatch.setattr(native, "_RUNTIME_MODULE", "rtp_llm._runtime_of_this_test")
    monkeypatch.delenv(native.OPS_VARIABLE, raising=False)
    monkeypatch.delenv(native.RUNTIME_VARIABLE, raising=False)
    return folder


def _file(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def _record(device: str = "cpu", **entry: str) -> str:
    return json.dumps({device: entry})


def test_environment_then_package_then_build_record(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = _file(package.parent / "out/librtp_llm_cpu.so")
    _file(package.parent / native.BUILD_RECORD, _record(ops_library=str(recorded)))
    assert native.ops_library_path() == recorded

    installed = _file(package / "lib/librtp_llm_cpu.so")
    assert native.ops_library_path() == installed

    chosen = _file(package.parent / "chosen.so")
    monkeypatch.setenv(native.OPS_VARIABLE, str(chosen))
    assert native.ops_library_path() == chosen


def test_build_record_may_be_relative_to_the_source_tree(package: Path) -> None:
    recorded = _file(package.parent / "bazel-bin/lib.so")
    _file(package.parent / native.BUILD_RECORD, _record(ops_library="bazel-bin/lib.so"))
    assert native.ops_library_path() == recorded


def test_the_build_for_the_installed_torch_is_taken(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries = {name: _file(package.parent / f"{name}.so") for name in ("cuda", "cpu", "xpu")}
    record = package.parent / native.BUILD_RECORD

    def chosen(torch: str, *built: str) -> Path:
        monkeypatch.setattr(native, "torch_build", lambda: TorchBuild("2.13.0", torch))
        record.write_text(json.dumps({name: {"ops_library": f"{name}.so"} for name in built}))
        return native.ops_library_path()

    assert chosen("cpu", "cuda", "cpu") == libraries["cpu"]
    assert chosen("cuda", "cpu", "cuda") == libraries["cuda"]
    assert chosen("cuda", "xpu", "cpu") == libraries["cpu"], "it loads with every torch"
    with pytest.raises(native.NativeLibraryError, match=r"has builds for cuda, xpu, but torch "):
        chosen("cpu", "cuda", "xpu")


def test_libraries_of_two_devices_are_refused(package: Path) -> None:
    for device in ("cpu", "cuda"):
        _file(package / f"lib/librtp_llm_{device}.so")
    with pytest.raises(native.NativeLibraryError, match=r"librtp_llm_cpu\.so, librtp_llm_cuda\.so"):
        native.ops_library_path()


def test_links_are_not_resolved(package: Path) -> None:
    target = _file(package.parent / "elsewhere/target.so")
    link = package / "lib/librtp_llm_cpu.so"
    link.parent.mkdir()
    link.symlink_to(target)
    assert native.ops_library_path() == link


def test_error_names_all_three_places(package: Path) -> None:
    with pytest.raises(native.NativeLibraryError) as ops_error:
        native.ops_library_path()
    with pytest.raises(native.NativeLibraryError) as runtime_error:
        native.load_runtime()
    record = str(package.parent / native.BUILD_RECORD)
    for part in (native.OPS_VARIABLE, f"{package}/lib/librtp_llm_*.so", record):
        assert part in str(ops_error.value)
    for part in (native.RUNTIME_VARIABLE, f"{package}/_runtime.*.so", record):
        assert part in str(runtime_error.value)


def test_wrong_places_are_errors_and_not_passed_over(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = _file(package.parent / native.BUILD_RECORD, _record(ops_library="gone.so"))
    with pytest.raises(native.NativeLibraryError, match=r"gone\.so, which is not a file; run"):
        native.ops_library_path()
    for text in ("{}", "[]", "not json", '{"device": "cpu", "ops_library": "x.so"}'):
        record.write_text(text)
        with pytest.raises(native.NativeLibraryError, match="has no path for 'ops_library'"):
            native.ops_library_path()
    _file(package / "lib/librtp_llm_cpu.so")
    monkeypatch.setenv(native.OPS_VARIABLE, "/nowhere/x.so")
    with pytest.raises(native.NativeLibraryError, match=r"names /nowhere/x\.so, which is not"):
        native.ops_library_path()


def test_runtime_from_variable_and_record(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = native._RUNTIME_MODULE
    recorded = _file(package.parent / "recorded.py", "WHERE = 'recorded'")
    _file(package.parent / native.BUILD_RECORD, _record(runtime=str(recorded)))
    assert native.load_runtime().WHERE == "recorded"
    assert native.load_runtime() is sys.modules.pop(name)

    chosen = _file(package.parent / "chosen.py", "WHERE = 'chosen'")
    monkeypatch.setenv(native.RUNTIME_VARIABLE, str(chosen))
    assert native.load_runtime().WHERE == "chosen"
    assert native.load_runtime() is sys.modules.pop(name)


def test_runtime_that_is_no_module(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = _file(package.parent / "runtime.txt")
    monkeypatch.setenv(native.RUNTIME_VARIABLE, str(text))
    with pytest.raises(native.NativeLibraryError, match="not a Python extension module"):
        native.load_runtime()
