# SPDX-License-Identifier: Apache-2.0
"""Packages that two environments share."""

from __future__ import annotations

import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

from tools.dev.linking import link_packages

_PROGRAM = "import sys, thing\nprint(thing.NUMBER, sys.executable)\n"


class Environments:
    """An environment with `thing`, `tool` and pip, an empty one, and a lock of `thing`."""

    def __init__(self, folder: Path) -> None:
        self.lock = folder / "lock.txt"
        self.lock.write_text("# by pip-compile\nThing==1.0 \\\n    --hash=sha256:0\nabsent==1.0\n")
        self.first, self.second = folder / "first", folder / "a second one"
        for environment in (self.first, self.second):
            _packages(environment).mkdir(parents=True)
            (environment / "bin").mkdir()
            (environment / "bin" / "python").symlink_to(sys.executable)
        for name in ("pip", "thing", "tool"):
            self._install(name)

    def _install(self, name: str) -> None:
        packages = _packages(self.first)
        info = packages / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        listed = [f"{name}.py", f"{info.name}/METADATA", f"../../../bin/{name}"]
        (info / "RECORD").write_text("".join(f"{path},,\n" for path in [*listed, listed[0]]))
        (packages / f"{name}.py").write_text("NUMBER = 1\n")
        program = self.first / "bin" / name
        program.write_text(f"#!{self.first / 'bin' / 'python'}\n{_PROGRAM}")
        program.chmod(0o755)

    def link(self) -> None:
        link_packages(self.lock, _packages(self.first), _packages(self.second))

    def run(self) -> str:
        """What `thing` of the second environment prints."""
        path = {**os.environ, "PYTHONPATH": str(_packages(self.second))}
        command = [self.second / "bin" / "thing"]
        return subprocess.run(command, env=path, check=True, capture_output=True, text=True).stdout


def _packages(environment: Path) -> Path:
    return environment / "lib" / "python3" / "site-packages"


@pytest.fixture
def environments(tmp_path: Path) -> Environments:
    return Environments(tmp_path)


def test_the_lock_and_pip_are_linked_and_nothing_else(environments: Environments) -> None:
    environments.link()
    first, second = _packages(environments.first), _packages(environments.second)
    assert {path.name for path in second.iterdir()} == {
        *("pip.py", "pip-1.0.dist-info"),
        *("thing.py", "thing-1.0.dist-info"),
    }
    assert (first / "thing.py").samefile(second / "thing.py")


def test_programs_run_by_their_own_environment(environments: Environments) -> None:
    environments.link()
    number, python = environments.run().split(" ", 1)
    assert (number, python.strip()) == ("1", str(environments.second / "bin" / "python"))


def test_programs_of_a_long_path_are_recognised(environments: Environments) -> None:
    program = environments.first / "bin" / "thing"
    python = environments.first / "bin" / "python"
    program.write_text(f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n{_PROGRAM}")
    environments.link()
    assert str(environments.second / "bin" / "python") in environments.run()


def test_other_programs_stay_as_they_are(environments: Environments) -> None:
    program = environments.first / "bin" / "thing"
    program.write_bytes(b"\x7fELF")
    environments.link()
    assert program.samefile(environments.second / "bin" / "thing")


def test_compiled_modules_stay_valid(environments: Environments) -> None:
    compiled = Path(str(py_compile.compile(str(_packages(environments.first) / "thing.py"))))
    environments.link()
    linked = _packages(environments.second) / "__pycache__" / compiled.name
    assert linked.samefile(compiled)
    assert environments.run().startswith("1 ")


def test_on_another_file_system_files_are_copied(
    environments: Environments, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    environments.link()
    assert not (_packages(environments.first) / "thing.py").samefile(
        _packages(environments.second) / "thing.py"
    )
    assert environments.run().startswith("1 ")
