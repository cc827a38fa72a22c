# SPDX-License-Identifier: Apache-2.0
"""Fake toolkits of empty files and small scripts that the repository rules accept as complete."""

from __future__ import annotations

from pathlib import Path

# Each call appends a line to `calls`, next to bin/. The compiled output is an empty file.
_COMPILER = """\
#!/bin/sh
echo "$@" >> {root}/calls
case "$*" in
{answers}
esac
while [ $# -gt 1 ]; do [ "$1" = -o ] && : > "$2"; shift; done
"""
NVCC = """\
  --version) echo "Cuda compilation tools, release 13.0, V13.0.88"; exit ;;
  --list-gpu-arch) printf 'compute_80\\ncompute_90\\n'; exit ;;"""
_HIPCC = """\
  --version)
    echo "HIP version: 5.2.3"
    echo "clang version 15.0.6"
    echo "InstalledDir: {root}/llvm/bin"
    exit ;;"""
_CLANG = "  *--print-supported-cpus*) printf '\\tgfx906\\n\\tgfx90a\\n' >&2; exit ;;"

CUDA_PARTS = (
    "bin/cudafe++",
    "bin/fatbinary",
    "bin/nvcc",
    "bin/ptxas",
    "include/crt/host_config.h",
    "include/cuda_runtime.h",
    "lib64/libcudart_static.a",
    "nvvm/bin/cicc",
    "nvvm/libdevice/libdevice.10.bc",
)
ROCM_PARTS = (
    "amdgcn/bitcode/ocml.bc",
    "bin/hipcc",
    "include/hip/hip_runtime.h",
    "lib/libamdhip64.so",
    "llvm/bin/clang++",
)
CLANG_22_PARTS = (
    "bin/clang++",
    "bin/ld.lld",
)
_CLANG_22 = "  --version) echo 'clang version 22.1.8'; exit ;;"


def _touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def write_compiler(path: Path, root: Path, answers: str) -> None:
    """Write a fake compiler that answers as given by `answers` (branches of a shell `case`)."""
    path.write_text(_COMPILER.format(root=root, answers=answers))
    path.chmod(0o755)


def write_cuda(root: Path) -> Path:
    """Create a fake CUDA toolkit for sm_80 and sm_90."""
    for part in CUDA_PARTS:
        _touch(root / part)
    write_compiler(root / "bin/nvcc", root, NVCC)
    return root


def write_rocm(root: Path) -> Path:
    """Create a fake HIP compiler for gfx906 and gfx90a; its device libraries also know gfx942."""
    for part in ROCM_PARTS:
        _touch(root / part)
    for gpu in ("906", "90a", "942"):
        _touch(root / f"amdgcn/bitcode/oclc_isa_version_{gpu}.bc")
    write_compiler(root / "bin/hipcc", root, _HIPCC.format(root=root))
    write_compiler(root / "llvm/bin/clang++", root, _CLANG)
    _touch(root / "llvm/bin/clang-offload-bundler")
    return root


def write_clang_22(root: Path) -> Path:
    """Create a fake clang 22 and its linker; the path of the compiler."""
    for part in CLANG_22_PARTS:
        _touch(root / part)
    write_compiler(root / "bin/clang++", root, _CLANG_22)
    return root / "bin/clang++"


def write_torch(folder: Path, device_libraries: tuple[str, ...] = ()) -> Path:
    """Create a PYTHONPATH folder with a fake torch, whose libraries say which device it is for."""
    torch = folder / "torch"
    for library in ("libc10.so", "libtorch_cpu.so", *device_libraries):
        _touch(torch / "lib" / library)
    for header in ("torch/csrc/stable/library.h", "pybind11/pybind11.h"):
        _touch(torch / "include" / header)
    (torch / "__init__.py").write_text('__version__ = "2.13.0"\n')
    return folder


def calls(root: Path) -> list[str]:
    """Return the command lines with which a toolkit's compilers were called."""
    log = root / "calls"
    return log.read_text().splitlines() if log.exists() else []
