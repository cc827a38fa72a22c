# SPDX-License-Identifier: Apache-2.0
"""@local_torch: the lock's packages, or with RTP_LLM_TORCH=local those of the interpreter."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bazel.fake_toolkits_for_tests import write_torch
from bazel.nested_for_tests import NestedBazel, linked_tree

_CUDA = ("libc10_cuda.so", "libtorch_cuda.so")


class Workspace:
    """The source tree under a Bazel of its own, with a folder of Python packages."""

    def __init__(self, folder: Path) -> None:
        self.tree = linked_tree(folder)
        self.bazel = NestedBazel(folder.parent)

    def local(
        self, command: str, device: str, packages: Path, *arguments: str, choice: str = "local"
    ) -> subprocess.CompletedProcess[str]:
        settings = {"RTP_LLM_TORCH": choice, "RTP_LLM_DEVICE": device, "PYTHONPATH": str(packages)}
        environment = [f"--repo_env={name}={value}" for name, value in settings.items()]
        return self.bazel.run(self.tree, *environment, *arguments, command=command)

    def targets(self, device: str, packages: Path, **how: str) -> subprocess.CompletedProcess[str]:
        return self.local("query", device, packages, "--output=build", "@local_torch//:all", **how)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    made = Workspace(tmp_path_factory.mktemp("local_torch") / "tree")
    yield made
    made.bazel.close()


def test_no_lock_is_touched(workspace: Workspace, tmp_path: Path) -> None:
    packages = write_torch(tmp_path)
    done = workspace.local(
        "build", "cpu", packages, "--nobuild", "//rtp_llm/kernels:librtp_llm_cpu.so", "//deps:all"
    )
    assert done.returncode == 0, done.stderr
    assert not {name for name in workspace.bazel.fetched if name.startswith("pip_")}
    found = workspace.targets("cuda", write_torch(tmp_path / "cuda", _CUDA))
    assert found.returncode == 0, found.stderr
    assert "libtorch_cuda" not in found.stdout  # a stand-in is linked, on every machine the same


@pytest.mark.parametrize("missing", _CUDA)
def test_torch_has_to_be_the_devices(workspace: Workspace, missing: str, tmp_path: Path) -> None:
    packages = write_torch(tmp_path, tuple(name for name in _CUDA if name != missing))
    done = workspace.targets("cuda", packages)
    assert done.returncode != 0
    assert (
        f"the cuda build needs {missing}, which the torch in {packages}/torch lacks" in done.stderr
    )
    assert f"{packages}/torch/lib/{missing}" in done.stderr
    assert workspace.targets("cpu", packages).returncode == 0


def test_an_import_error_is_quoted(workspace: Workspace, tmp_path: Path) -> None:
    packages = write_torch(tmp_path)
    broken = "print('about to fail')\nraise ImportError('libfoo.so.3: cannot open')\n"
    (packages / "torch/__init__.py").write_text(broken)
    done = workspace.targets("cpu", packages)
    assert done.returncode != 0
    for quoted in ("return code: 1", "stdout: about to fail", "libfoo.so.3: cannot open"):
        assert quoted in done.stderr
    assert "RTP_LLM_PYTHON" in done.stderr


def test_otherwise_the_lock_of_the_device(workspace: Workspace, tmp_path: Path) -> None:
    done = workspace.targets("cpu", tmp_path, choice="lock")
    assert done.returncode == 0, done.stderr
    assert 'actual = "@pip_cpu//:torch_headers"' in done.stdout
    done = workspace.targets("cpu", tmp_path, choice="locale")
    assert done.returncode != 0
    assert 'RTP_LLM_TORCH is "locale"; it is local' in done.stderr
