# SPDX-License-Identifier: Apache-2.0
"""@local_xpu, driven with a fake oneAPI: complete, with each part missing, and what it compiles.

No oneAPI was at hand when this was written: these are the command lines, and nobody has run them.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bazel import fake_oneapi_for_tests as fake
from bazel.fake_toolkits_for_tests import calls
from bazel.nested_for_tests import NestedBazel, linked_tree
from tools.dev.bazel import sycl_compiler_flags

Bazel = Callable[..., "subprocess.CompletedProcess[str]"]
_BIN = "compiler/latest/bin"
# ./dev writes it into user.bazelrc.
_COMPILER = sycl_compiler_flags("bazel 4.2.3").split()
_LOST = """
load("//3rdparty/gpus/xpu:configure.bzl", "xpu_configure")
xpu_configure(name = "lost_xpu", places = ["/no/such/oneapi"], system_libraries = ["/no/such/lib"])
"""


@pytest.fixture(scope="module")
def nested(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NestedBazel]:
    bazel = NestedBazel(tmp_path_factory.mktemp("nested"))
    yield bazel
    bazel.close()


@pytest.fixture(scope="module")
def bazel(nested: NestedBazel, tmp_path_factory: pytest.TempPathFactory) -> Bazel:
    """bazel(command, *arguments, NAME=value): with the settings, and none of this machine's."""
    tree = linked_tree(tmp_path_factory.mktemp("tree"))
    workspace = (tree / "WORKSPACE").read_text()
    (tree / "WORKSPACE").unlink()
    (tree / "WORKSPACE").write_text(workspace + _LOST)

    def run(command: str, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        environment = [f"--repo_env={name}={value}" for name, value in settings.items()]
        return nested.run(tree, *environment, *arguments, command=command)

    return run


def _ask(bazel: Bazel, repository: str = "lost_xpu", **settings: str) -> str:
    """Return Bazel's message when an xpu build requests `repository`; it must refuse."""
    done = bazel("query", f"@{repository}//:all", RTP_LLM_DEVICE="xpu", **settings)
    assert done.returncode != 0, done.stdout
    return done.stderr


def test_no_build_for_another_device_looks(
    bazel: Bazel, nested: NestedBazel, tmp_path: Path
) -> None:
    """All labels exist without a network, and no package is fetched."""
    root = fake.write(tmp_path)
    found = bazel("query", "deps(@local_xpu//:all)", ONEAPI_ROOT=str(root), RTP_LLM_DEVICE="cpu")
    assert found.returncode == 0, found.stderr
    labels = ("cc", "loader", "sycl", "sycl_headers", "sycl_run_path", "toolkit")
    assert {f"@local_xpu//:{name}" for name in labels} <= set(found.stdout.splitlines())
    kernels = bazel("build", "--nobuild", "--config=cpu", "//rtp_llm/kernels/xpu/...")
    assert kernels.returncode == 0, kernels.stderr
    assert calls(root) == []
    assert not nested.fetched & {"sycl_packages"}


def test_a_complete_oneapi_is_taken(bazel: Bazel, nested: NestedBazel, tmp_path: Path) -> None:
    root = fake.write(tmp_path)
    for choice in ("auto", "oneapi"):
        done = bazel(
            "query",
            "kind(rule, @lost_xpu//:all)",
            ONEAPI_ROOT=str(root),
            RTP_LLM_DEVICE="xpu",
            RTP_LLM_SYCL=choice,
        )
        assert done.returncode == 0, done.stderr
        assert "@lost_xpu//:toolchain" in done.stdout.splitlines()
    assert not nested.fetched & {"sycl_packages"}


@pytest.mark.parametrize(
    ("part", "looked"),
    [
        (f"{_BIN}/icx", ["needs icx", f"{_BIN}/icx", "bin/icx", "the PATH"]),
        (f"{_BIN}/icpx", ["needs icpx", f"{_BIN}/icpx", "bin/icpx", "the PATH"]),
        (
            "lib/libze_loader.so",
            [
                "the Level Zero loader libze_loader.so",
                "/no/such/lib/libze_loader.so",
                "compiler/latest/lib/libze_loader.so",
                "lib/libze_loader.so",
            ],
        ),
        ("compiler/latest/lib/libsycl.so", ["libsycl.so", "lib/libsycl.so"]),
        ("compiler/latest/include/sycl/sycl.hpp", ["the SYCL headers", "include/sycl/sycl.hpp"]),
    ],
)
def test_a_missing_part_is_named(
    bazel: Bazel, tmp_path: Path, part: str, looked: list[str]
) -> None:
    root = fake.write(tmp_path)
    (root / part).unlink()
    said = _ask(bazel, ONEAPI_ROOT=str(root))
    assert "the xpu build needs" in said
    for name in [*looked, f"{root}/{part}", "what to do: install", "RTP_LLM_SYCL=packages"]:
        assert name in said


def test_the_root_decides_even_when_it_is_wrong(bazel: Bazel, tmp_path: Path) -> None:
    said = _ask(bazel, ONEAPI_ROOT=f"{tmp_path}/typo")
    assert "the oneAPI that ONEAPI_ROOT names" in said
    assert f"{tmp_path}/typo (ONEAPI_ROOT)" in said
    said = _ask(bazel, RTP_LLM_SYCL="oneapi", PATH="/no/such/bin")
    for looked in ("$ONEAPI_ROOT (not set)", "/no/such/oneapi", "icpx on the PATH"):
        assert looked in said
    said = _ask(bazel, RTP_LLM_SYCL="cuda")
    assert 'RTP_LLM_SYCL is "cuda"; it is one of auto, oneapi, packages' in said


def test_a_compiler_that_does_not_work_is_quoted(bazel: Bazel, tmp_path: Path) -> None:
    root = fake.write(tmp_path / "silent", lists_includes=False)
    said = _ask(bazel, ONEAPI_ROOT=str(root))
    assert "the include directories of icpx" in said
    assert "icpx -E -v -x c++ /dev/null" in said
    root = fake.write(tmp_path / "broken")
    (root / _BIN / "icpx").write_text("#!/bin/sh\necho said\necho no license >&2\nexit 7\n")
    said = _ask(bazel, ONEAPI_ROOT=str(root))
    for quoted in ("return code: 7", "stdout: said", "stderr: no license"):
        assert quoted in said
    root = fake.write(tmp_path / "plain")
    (root / _BIN / "icpx").chmod(0o644)
    assert "an executable icpx" in _ask(bazel, ONEAPI_ROOT=str(root))


def test_a_missing_python_is_named(bazel: Bazel, tmp_path: Path) -> None:
    root = fake.write(tmp_path)
    said = _ask(bazel, ONEAPI_ROOT=str(root), RTP_LLM_PYTHON="/no/such/python")
    assert "no Python of" in said
    assert "/no/such/python" in said


def _actions(bazel: Bazel, root: Path, expression: str, *arguments: str) -> list[str]:
    """The actions with their command lines, each on one line and without quotes."""
    done = bazel(
        "aquery",
        "--config=xpu",
        *_COMPILER,
        "--include_param_files",
        *arguments,
        expression,
        ONEAPI_ROOT=str(root),
    )
    assert done.returncode == 0, done.stderr
    text = done.stdout.replace("\\\n", "").replace("'", "")
    return [" ".join(action.split()) for action in text.split("\n\n")]


@pytest.mark.parametrize("target", ["spir64", "spir64_gen", "intel_gpu_pvc,spir64"])
def test_device_code_and_nothing_else_is_compiled_as_sycl(
    bazel: Bazel, tmp_path: Path, target: str
) -> None:
    root = fake.write(tmp_path)
    test = "//rtp_llm/kernels/xpu/runtime:kernel_test"
    flag = f"--//arch_config:sycl_target={target}"
    compiles = _actions(bazel, root, f"mnemonic(CppCompile, deps({test}))", flag)
    device = [action for action in compiles if " -fsycl " in action]
    assert len(device) == 1
    assert "-c rtp_llm/kernels/xpu/runtime/scale_for_tests.cc" in device[0]
    assert f"-fsycl-targets={target} " in device[0]
    assert "-ffp-model=precise" in device[0]
    host = [action for action in compiles if "-c rtp_llm/kernels/xpu/runtime/kernel.cc" in action]
    assert len(host) == 1
    for action in (*device, *host):
        assert "external/local_xpu/compiler " in action
    links = _actions(
        bazel, root, f'mnemonic(CppLink, set({test} "//rtp_llm/cpp/pybind:all"))', flag
    )
    sycl = [action for action in links if f"-fsycl-targets={target}" in action]
    assert sycl
    assert all("Target: " + test in action for action in sycl)
    assert all("-lze_loader" in action for action in sycl)


def test_without_icpx_code_is_for_the_run_time(bazel: Bazel, tmp_path: Path) -> None:
    """The packages stand in as empty files: nothing of 1.5 GB is fetched."""
    packages = tmp_path / "packages"
    for name in (
        *("include/sycl/sycl.hpp", "lib/libsycl.so", "lib/libsycl-jit.so"),
        *("lib/libur_loader.so", "lib/libintelocl.so"),
    ):
        (packages / "environment/venv" / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / "environment/venv" / name).touch()
    (packages / "WORKSPACE").touch()
    (packages / "BUILD.bazel").touch()
    build = (
        *("build", "--nobuild", "--config=xpu", *_COMPILER),
        f"--override_repository=sycl_packages={packages}",
        *("--repo_env=RTP_LLM_SYCL=packages", "//rtp_llm/kernels/xpu/runtime:scale_for_tests"),
    )
    done = bazel(*build)
    assert done.returncode == 0, done.stderr
    done = bazel(*build, "--//arch_config:sycl_target=intel_gpu_pvc")
    assert done.returncode != 0
    assert "--//arch_config:sycl_target=intel_gpu_pvc needs icpx" in done.stderr
    assert "RTP_LLM_SYCL=oneapi" in done.stderr
    (packages / "environment/venv/lib/libsycl-jit.so").unlink()
    done = bazel(*build, "--repo_env=HOME=/look/again")
    assert done.returncode != 0
    assert "needs libsycl-jit.so" in done.stderr
