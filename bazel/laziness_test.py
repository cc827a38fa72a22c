"""A device's packages are fetched when a target for that device is analysed, and not before.

The other devices have no lock yet, so this looks at a copy of the workspace in which each has one.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from bazel.nested_for_tests import NestedBazel, linked_tree


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return linked_tree(tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="module")
def workspace(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree with a lock for every device."""
    folder = tmp_path_factory.mktemp("workspace")
    for path in tree.iterdir():
        if path.name != "arch_config":
            (folder / path.name).symlink_to(path.resolve())
    shutil.copytree(tree / "arch_config", folder / "arch_config")
    table = folder / "arch_config" / "devices.bzl"
    table.write_text(
        re.sub(r" lock = None", ' lock = "//deps:requirements_cpu.txt"', table.read_text())
    )
    return folder


@pytest.fixture(scope="module")
def bazel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NestedBazel]:
    nested = NestedBazel(tmp_path_factory.mktemp("nested"))
    yield nested
    nested.close()


def _packages(bazel: NestedBazel) -> set[str]:
    return {name for name in bazel.fetched if name.startswith("pip_")}


def test_packages_are_fetched_for_their_device_only(bazel: NestedBazel, workspace: Path) -> None:
    done = bazel.run(
        workspace, "--nobuild", "//rtp_llm/cpp/cache/...", "//rtp_llm/cpp/scheduler/..."
    )
    assert done.returncode == 0, done.stderr
    assert _packages(bazel) == set()  # C++ needs no Python package of any device

    done = bazel.run(workspace, "--nobuild", "--config=cpu", "//...")
    assert done.returncode == 0, done.stderr
    assert _packages(bazel) == {"pip_cpu", "pip_cpu_venv"}

    done = bazel.run(workspace, "--nobuild", "--config=cuda", "//rtp_llm/kernels:librtp_llm_cpu.so")
    assert done.returncode == 0, done.stderr
    assert _packages(bazel) == {"pip_cpu", "pip_cpu_venv", "pip_cuda", "pip_cuda_venv"}


def test_another_devices_wheel_is_refused_by_name(bazel: NestedBazel, workspace: Path) -> None:
    done = bazel.run(workspace, "--nobuild", "--config=cpu", "//rtp_llm:rtp_llm_cuda")
    assert done.returncode != 0
    assert "//rtp_llm:rtp_llm_cuda is incompatible" in done.stderr


def test_a_device_without_lock_says_what_is_missing(bazel: NestedBazel, tree: Path) -> None:
    done = bazel.run(tree, "--nobuild", "//...")
    assert done.returncode == 0, done.stderr  # nor does it keep others from being built

    done = bazel.run(tree, "--nobuild", "--config=rocm", "//rtp_llm:rtp_llm_rocm")
    assert done.returncode != 0
    assert "The rocm build is not possible yet; it lacks deps/requirements_rocm.txt" in done.stderr
