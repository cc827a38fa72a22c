# SPDX-License-Identifier: Apache-2.0
"""Repository rules of GPU toolkits, driven with fake ones: complete, and with each part missing."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bazel import fake_toolkits_for_tests as fake
from bazel.nested_for_tests import NestedBazel, linked_tree

Query = Callable[..., "subprocess.CompletedProcess[str]"]
_TOOLKITS = {
    "cuda": ("RTP_LLM_CUDA_HOME", fake.write_cuda),
    "rocm": ("RTP_LLM_ROCM_HOME", fake.write_rocm),
}
_NOWHERE = """
load("//3rdparty/gpus/cuda:configure.bzl", "cuda_configure")
load("//3rdparty/gpus/rocm:configure.bzl", "rocm_configure")
cuda_configure(name = "lost_cuda", places = ["/no/such/cuda"])
rocm_configure(name = "lost_rocm", places = ["/no/such/rocm"])
"""


@pytest.fixture(scope="module")
def bazel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NestedBazel]:
    nested = NestedBazel(tmp_path_factory.mktemp("nested"))
    yield nested
    nested.close()


@pytest.fixture(scope="module")
def query(tmp_path_factory: pytest.TempPathFactory, bazel: NestedBazel) -> Query:
    """query(pattern, NAME=value, ...): `bazel query` with the settings, none of this machine's."""
    tree = linked_tree(tmp_path_factory.mktemp("tree"))
    workspace = (tree / "WORKSPACE").read_text()
    (tree / "WORKSPACE").unlink()
    (tree / "WORKSPACE").write_text(workspace + _NOWHERE)

    def run(pattern: str, **settings: str) -> subprocess.CompletedProcess[str]:
        settings = {"RTP_LLM_ROCM_CLANG": "hipcc"} | settings
        environment = [f"--repo_env={name}={value}" for name, value in settings.items()]
        return bazel.run(tree, *environment, pattern, command="query")

    return run


def _targets(done: subprocess.CompletedProcess[str]) -> set[str]:
    assert done.returncode == 0, done.stderr
    return {line.rpartition(":")[2] for line in done.stdout.splitlines()}


@pytest.mark.parametrize("device", _TOOLKITS)
def test_a_complete_toolkit_is_taken(query: Query, device: str, tmp_path: Path) -> None:
    setting, write = _TOOLKITS[device]
    root = write(tmp_path)
    environ = {"RTP_LLM_DEVICE": device, setting: str(root)}
    found = _targets(query(f"kind(rule, @local_{device}//:all)", **environ))
    assert any("-c" in call.split() for call in fake.calls(root)), "no kernel was compiled"

    called = len(fake.calls(root))
    other = {"RTP_LLM_DEVICE": "cpu", setting: str(root)}
    inert = _targets(query(f"kind(rule, @local_{device}//:all)", **other))
    assert "toolkit" in inert
    assert inert <= found
    assert _targets(query(f"deps(@local_{device}//:all)", **other))
    assert len(fake.calls(root)) == called, "a compiler ran in a build for another device"


@pytest.mark.parametrize(
    ("device", "part"),
    [("cuda", part) for part in fake.CUDA_PARTS] + [("rocm", part) for part in fake.ROCM_PARTS],
)
def test_a_missing_part_is_named(query: Query, device: str, part: str, tmp_path: Path) -> None:
    setting, write = _TOOLKITS[device]
    (write(tmp_path) / part).unlink()
    done = query(f"@local_{device}//:all", **{"RTP_LLM_DEVICE": device, setting: str(tmp_path)})
    assert done.returncode != 0
    assert f"the {device} build needs" in done.stderr
    assert f"{tmp_path}/{part}" in done.stderr
    assert "what to do: install" in done.stderr
    assert setting in done.stderr


@pytest.mark.parametrize("device", _TOOLKITS)
def test_no_toolkit_at_all(query: Query, device: str, tmp_path: Path) -> None:
    environ = {"RTP_LLM_DEVICE": device, "PATH": "/usr/bin/does-not-exist"}
    done = query(f"@lost_{device}//:all", **environ)
    assert done.returncode != 0
    for looked in (f"${_TOOLKITS[device][0]} (not set)", f"/no/such/{device}/bin/", "the PATH"):
        assert looked in done.stderr


def test_settings_come_in_order_and_decide_even_when_wrong(query: Query, tmp_path: Path) -> None:
    whole = fake.write_cuda(tmp_path / "whole")
    environ = {
        "RTP_LLM_DEVICE": "cuda",
        "CUDA_HOME": str(tmp_path / "typo"),
        "CUDA_PATH": str(whole),
    }
    done = query("@local_cuda//:all", **environ)
    assert done.returncode != 0
    assert f"{tmp_path}/typo/bin/nvcc (CUDA_HOME)" in done.stderr
    done = query("@local_cuda//:all", RTP_LLM_CUDA_HOME=str(whole), **environ)
    assert done.returncode == 0, done.stderr


def test_a_compiler_that_fails_is_quoted(query: Query, tmp_path: Path) -> None:
    root = fake.write_cuda(tmp_path)
    fake.write_compiler(
        root / "bin/nvcc",
        root,
        fake.NVCC + "\n  *probe.cu*) echo said; echo unsupported GNU version >&2; exit 7 ;;",
    )
    done = query("@local_cuda//:all", RTP_LLM_DEVICE="cuda", RTP_LLM_CUDA_HOME=str(root))
    assert done.returncode != 0
    for quoted in ("return code: 7", "stdout: said", "stderr: unsupported GNU version", "(CC "):
        assert quoted in done.stderr


def test_gpus_need_the_compiler_and_the_device_libraries(query: Query, tmp_path: Path) -> None:
    root = fake.write_rocm(tmp_path)
    for known in (root / "amdgcn/bitcode").glob("oclc_isa_version_9*[06a].bc"):
        known.unlink()
    done = query("@local_rocm//:all", RTP_LLM_DEVICE="rocm", RTP_LLM_ROCM_HOME=str(root))
    assert done.returncode != 0
    assert "device libraries for the same AMD GPUs" in done.stderr
    assert "(knows gfx906, gfx90a)" in done.stderr


@pytest.mark.parametrize("part", fake.CLANG_22_PARTS)
def test_a_missing_part_of_clang_22_is_named(query: Query, part: str, tmp_path: Path) -> None:
    clang = fake.write_clang_22(tmp_path / "llvm-22")
    environ = {
        "RTP_LLM_DEVICE": "rocm",
        "RTP_LLM_ROCM_HOME": str(fake.write_rocm(tmp_path / "rocm")),
        "RTP_LLM_ROCM_CLANG": str(clang),
    }
    done = query("@local_rocm//:all", **environ)
    assert done.returncode == 0, done.stderr
    # The fake runtime has no number: it is named, and the one that torch wants.
    said = "has libamdhip64.so. Kernels compile"
    assert said in done.stderr and "a wheel needs libamdhip64.so.7" in done.stderr
    (tmp_path / "llvm-22" / part).unlink()
    environ["ROCM_PATH"] = "/looked/at/again"
    done = query("@local_rocm//:all", **environ)
    assert done.returncode != 0
    assert str(tmp_path / "llvm-22" / part) in done.stderr


def test_a_query_of_everything_looks_at_no_toolkit(query: Query, bazel: NestedBazel) -> None:
    done = query("deps(//rtp_llm/...)")
    assert done.returncode == 0, done.stderr
    assert "@local_rocm//:toolkit" in done.stdout  # there, and inert
    assert "sycl_packages" not in bazel.fetched
