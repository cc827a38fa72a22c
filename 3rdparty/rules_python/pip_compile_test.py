# SPDX-License-Identifier: Apache-2.0
"""The local compile_pip_requirements: pip-tools writes a lock, and a test of it sees a change."""

from __future__ import annotations

import importlib.util
import os
import zipfile
from pathlib import Path
from types import ModuleType

import pytest


def _load() -> ModuleType:
    """By its path: a folder whose name begins with a digit is no package."""
    found = importlib.util.spec_from_file_location(
        "pip_compile", "3rdparty/rules_python/pip_compile.py"
    )
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runfiles with a lock that is not made yet, and an index of two versions of a package."""
    for version in ("1.0", "2.0"):
        info = f"thing-{version}.dist-info"
        with zipfile.ZipFile(tmp_path / f"thing-{version}-py3-none-any.whl", "w") as archive:
            archive.writestr("thing.py", "")
            archive.writestr(
                f"{info}/METADATA", f"Metadata-Version: 2.1\nName: thing\nVersion: {version}\n"
            )
            archive.writestr(
                f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            archive.writestr(f"{info}/RECORD", "")
    deps = tmp_path / "runfiles" / "deps"
    deps.mkdir(parents=True)
    (deps / "a.in").write_text("-r base.in\n")
    (deps / "base.in").write_text("thing<2\n")
    (deps / "a.txt").write_text("")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("BUILD_WORKSPACE_DIRECTORY", raising=False)
    return tmp_path


def test_a_lock_is_written_and_compared(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    module, deps = _load(), tree / "runfiles" / "deps"
    monkeypatch.chdir(tree / "runfiles")
    arguments = ["--src=deps/a.in", "deps/a.txt", "--quiet", "--no-emit-find-links"]
    assert module.main(arguments) == 1
    assert "deps/a.txt is out of date: bazel run //deps:a.update" in capfd.readouterr().err
    assert (deps / "a.txt").read_text() == "", "a test writes nothing"

    with monkeypatch.context() as running:
        running.setenv("BUILD_WORKSPACE_DIRECTORY", str(tree / "runfiles"))
        assert module.main(arguments) == 0
    lock = (deps / "a.txt").read_text()
    pin, digest = module.pins(lock)[-2:]
    assert (pin, digest.strip()[:14]) == ("thing==1.0 \\", "--hash=sha256:")
    assert "-r deps/base.in" in lock
    assert module.main(arguments) == 0
    (deps / "a.txt").write_text(lock.replace("-r deps/base.in", "-r base.in"))
    assert module.main(arguments) == 0, "of comments nothing depends"
    (deps / "base.in").write_text("thing>=2\n")
    assert module.main(arguments) == 1
