# SPDX-License-Identifier: Apache-2.0
"""What gpu_library runs in each config: the compiler, its flags, and no other device's toolkit."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bazel import fake_toolkits_for_tests as fake
from bazel.nested_for_tests import NestedBazel, linked_tree

_BUILD = """
load("//bazel:defs.bzl", "gpu_library", "hip_library", "rtp_ops_library")
gpu_library(name = "kernels", srcs = ["kernels.cu"], hdrs = ["kernels.h"])
hip_library(name = "hip_only", srcs = ["kernels.cu"])
rtp_ops_library(name = "probe_cuda", device = "cuda", deps = [":kernels"])
rtp_ops_library(name = "probe_rocm", device = "rocm", deps = [":kernels"])
"""


class Workspace:
    """A package of GPU code in the source tree, fake toolkits, and a Bazel of its own."""

    def __init__(self, folder: Path) -> None:
        self.tree = linked_tree(folder / "tree")
        package = self.tree / "gpu_code"
        package.mkdir()
        for name in ("kernels.cu", "kernels.h"):
            (package / name).touch()
        (package / "BUILD").write_text(_BUILD)
        self.bazel = NestedBazel(folder)
        fake.write_torch(
            folder / "torch",
            ("libtorch_cuda.so", "libc10_cuda.so", "libtorch_hip.so", "libc10_hip.so"),
        )
        self._settings = {
            "PYTHONPATH": folder / "torch",
            "RTP_LLM_TORCH": "local",
            "RTP_LLM_CUDA_HOME": fake.write_cuda(folder / "cuda"),
            "RTP_LLM_ROCM_HOME": fake.write_rocm(folder / "rocm"),
            "RTP_LLM_ROCM_CLANG": "hipcc",
        }
        self.clang_22 = fake.write_clang_22(folder / "llvm-22")

    def run(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = [f"--repo_env={name}={value}" for name, value in self._settings.items()]
        return self.bazel.run(self.tree, *environment, *arguments, command=command)

    def command_line(self, pattern: str, *arguments: str) -> list[str]:
        """The words of the one action of `pattern`."""
        done = self.run("aquery", *arguments, pattern)
        assert done.returncode == 0, done.stderr
        (found,) = re.findall(r"Command Line: \(exec (.*?)\)\n", done.stdout, re.DOTALL)
        return [word.strip("'") for word in found.replace("\\\n", " ").split()]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    made = Workspace(tmp_path_factory.mktemp("gpu"))
    yield made
    made.bazel.close()


_COMPILE = "mnemonic('CudaCompile|HipCompile', //gpu_code:kernels)"


# First in this file: what an earlier test fetched would be seen here.
@pytest.mark.parametrize(("config", "foreign"), [("cuda", "rocm|xpu|sycl"), ("rocm", "xpu|sycl")])
def test_the_whole_tree_needs_no_other_devices_repositories(
    workspace: Workspace, config: str, foreign: str
) -> None:
    gpus = "--//arch_config:gfx_target=gfx90a"
    done = workspace.run("build", "--nobuild", f"--config={config}", gpus, "//...")
    assert done.returncode == 0, done.stderr
    fetched = workspace.bazel.fetched
    assert not {name for name in fetched if re.search(f"{foreign}|^pip_", name)}


def test_cuda_is_nvcc(workspace: Workspace) -> None:
    words = workspace.command_line(_COMPILE, "--config=cuda", "--//arch_config:cuda_arch=80,90,90a")
    assert words[0].endswith("/cuda/bin/nvcc")
    assert [word for word in words if word.startswith("-gencode")] == [
        "-gencode=arch=compute_80,code=[sm_80]",
        # The last one whose PTX runs on later GPUs, too.
        "-gencode=arch=compute_90,code=[sm_90,compute_90]",
        "-gencode=arch=compute_90a,code=[sm_90a]",
    ]
    assert {"--objdir-as-tempdir", "-std=c++17", "-Werror=all-warnings"} < set(words)
    assert "-fPIC,-fvisibility=hidden" in " ".join(words)
    assert "-Xcudafe=--orig_src_path_name=gpu_code/kernels.cu" in words


def test_rocm_is_hipcc(workspace: Workspace) -> None:
    words = workspace.command_line(_COMPILE, "--config=rocm", "--//arch_config:gfx_target=gfx90a")
    assert words[0].endswith("/rocm/bin/hipcc")
    assert ("-x", "hip") in itertools.pairwise(words)
    assert {"--offload-arch=gfx90a", "-fPIC", "-fvisibility=hidden", "-Werror"} < set(words)


def test_rocm_is_clang_22_where_hipcc_is_old(workspace: Workspace) -> None:
    clang = f"--repo_env=RTP_LLM_ROCM_CLANG={workspace.clang_22}"
    words = workspace.command_line(_COMPILE, "--config=rocm", clang)
    assert words[0] == str(workspace.clang_22)
    targets = [word for word in words if word.startswith("--offload-arch=")]
    assert targets == [f"--offload-arch={gpu}" for gpu in ("gfx90a", "gfx942", "gfx950")]
    # Relative paths: clones share what they have compiled.
    repository = "external/local_rocm"
    places = {f"--rocm-device-lib-path={repository}/device", f"-B{repository}/bin"}
    assert places < set(words)
    made = workspace.bazel.output_base / repository / "device"
    assert {"oclc_isa_version_950.bc", "ocml.bc"} < {path.name for path in made.iterdir()}


@pytest.mark.parametrize(
    ("config", "flag", "lacks", "knows"),
    [
        ("cuda", "cuda_arch=80,100a", "CUDA 13.0", "it knows 80, 90"),
        (
            "rocm",
            "gfx_target=gfx90a,gfx942",
            "HIP version: 5.2.3; clang-22 and lld-22 of Debian know gfx942 and gfx950",
            "it knows gfx906, gfx90a",
        ),
    ],
)
def test_what_the_compiler_lacks_is_refused(
    workspace: Workspace, config: str, flag: str, lacks: str, knows: str
) -> None:
    options = [f"--config={config}", f"--//arch_config:{flag}"]
    done = workspace.run("build", "--nobuild", *options, "//gpu_code:kernels")
    assert done.returncode != 0
    newest = flag.rpartition(",")[2]
    assert f"({lacks}) cannot compile for {newest}" in done.stderr
    assert knows in done.stderr


def test_cpu_has_no_gpu_code(workspace: Workspace) -> None:
    done = workspace.run("build", "--nobuild", "//gpu_code:kernels")
    assert "//gpu_code:kernels is incompatible" in done.stderr
    done = workspace.run("build", "--nobuild", "--config=cuda", "//gpu_code:hip_only")
    assert "//gpu_code:hip_only is incompatible" in done.stderr
    done = workspace.run("build", "--nobuild", "--//arch_config:device=cuda", "//gpu_code:kernels")
    assert "use --config=cuda" in done.stderr


@pytest.mark.parametrize(
    ("config", "torch", "runtime"),
    [("cuda", "torch_cuda", "cudart_static.a"), ("rocm", "torch_hip", "amdhip64.so")],
)
def test_operator_libraries_name_their_torch(
    workspace: Workspace, config: str, torch: str, runtime: str
) -> None:
    link = f"mnemonic(CppLink, //gpu_code:libprobe_{config}.so)"
    gpus = "--//arch_config:gfx_target=gfx90a"
    words = workspace.command_line(link, f"--config={config}", gpus)
    names = {word.rpartition("/")[2] for word in words}
    assert {f"lib{torch}.so", "libtorch_cpu.so", f"lib{runtime}"} < names
    (run_path,) = (word for word in words if "-rpath" in word)
    assert "$ORIGIN/../../torch/lib" in run_path
    assert ("$ORIGIN/../../nvidia/cu13/lib" in run_path) == (config == "cuda")
