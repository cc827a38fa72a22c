# SPDX-License-Identifier: Apache-2.0
"""A device's packages are fetched when a target for that device is analysed, and not before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bazel.nested_for_tests import NestedBazel, linked_tree


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return linked_tree(tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="module")
def bazel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NestedBazel]:
    nested = NestedBazel(tmp_path_factory.mktemp("nested"))
    yield nested
    nested.close()


def _packages(bazel: NestedBazel) -> set[str]:
    return {name for name in bazel.fetched if name.startswith(("pip_", "sycl_packages"))}


def test_packages_are_fetched_for_their_device_only(bazel: NestedBazel, tree: Path) -> None:
    done = bazel.run(tree, "--nobuild", "//rtp_llm/cpp/cache/...", "//rtp_llm/cpp/scheduler/...")
    assert done.returncode == 0, done.stderr
    assert _packages(bazel) == set()  # C++ needs no Python package of any device

    done = bazel.run(tree, "--nobuild", "--config=cpu", "//...")
    assert done.returncode == 0, done.stderr
    expected = {"pip_cpu", "pip_cpu_venv"}
    assert _packages(bazel) == expected

    target = "//rtp_llm/kernels:librtp_llm_cpu.so"
    # xpu's own compiler would be looked for in packages of 1.5 GB.
    host_compiler = "--crosstool_top=@bazel_tools//tools/cpp:toolchain"
    for device in ("cuda", "rocm", "xpu"):  # built with the same packages
        done = bazel.run(tree, "--nobuild", f"--config={device}", host_compiler, target)
        assert done.returncode == 0, done.stderr
        assert _packages(bazel) == expected

    done = bazel.run(tree, "--nobuild", "--config=cuda", "--repo_env=RTP_LLM_TORCH=device", target)
    assert done.returncode == 0, done.stderr
    assert _packages(bazel) == expected | {"pip_cuda", "pip_cuda_venv"}


def test_a_lock_without_torch_is_not_installed(tree: Path, tmp_path: Path) -> None:
    bazel = NestedBazel(tmp_path, installed=())
    target = "//rtp_llm/kernels:librtp_llm_cpu.so"
    done = bazel.run(tree, "--nobuild", "--config=rocm", "--repo_env=RTP_LLM_TORCH=device", target)
    bazel.close()
    assert done.returncode != 0
    assert "requirements_rocm.txt has no torch. ./dev lock writes it with one where" in done.stderr


def test_another_devices_wheel_is_refused_by_name(bazel: NestedBazel, tree: Path) -> None:
    done = bazel.run(tree, "--nobuild", "--config=cpu", "//rtp_llm:rtp_llm_cuda")
    assert done.returncode != 0
    assert "//rtp_llm:rtp_llm_cuda is incompatible" in done.stderr


def test_a_wrong_target_is_refused_with_what_was_expected(bazel: NestedBazel, tree: Path) -> None:
    for flag, wrong, reason in (
        ("cuda_arch", "sm_90", "compute capabilities without the dot"),
        ("cuda_arch", "90,90", "names 90 twice"),
        ("gfx_target", "90a", "names of AMD processors"),
        ("sycl_target", "gpu", "targets of -fsycl-targets"),
    ):
        label = f"//arch_config:{flag}"
        done = bazel.run(tree, "--nobuild", f"--{label}={wrong}", label)
        assert done.returncode != 0
        assert reason in done.stderr
