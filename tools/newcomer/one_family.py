# SPDX-License-Identifier: Apache-2.0
"""An operator library with the CPU kernels of one family, by the compiler alone.

Bazel would first fetch and analyse what the copied tree needs, and build the whole library. The
flags come from bazel/cc.bzl and rtp_llm/kernels/cpu/defs.bzl.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

_COMMON = Path("rtp_llm/kernels/common")
_CPU = Path("rtp_llm/kernels/cpu")
_BASE = ("counters.cc", "cpu_features.cc", "glue.cc", "schema.cc", "thread_pool.cc")
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-Wno-uninitialized")
_ISAS: dict[str, tuple[str, ...]] = {"scalar": (), "avx2": _AVX2, "avx512": _AVX512}
_FLAGS = ("-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wno-maybe-uninitialized")
_STABLE_ABI = "-DTORCH_TARGET_VERSION=0x020b000000000000"


def build(tree: Path, out: Path, family: str) -> Path:
    """Path of a library with every operator's schema and the kernels of `family` in `tree`.

    They are those that <family>_kernel.cc marks. RuntimeError with what the compiler says.
    """
    made = out / _COMMON / family
    made.mkdir(parents=True)
    kernel = _CPU / family / f"{family}_kernel.cc"
    _generate(tree, "schemas", out / _COMMON / "schemas.h")
    _generate(tree, "calls", made / "calls.h", family)
    _generate(tree, "glue", out / "glue.cc", "cpu", str(kernel))
    units: list[tuple[Path, str, tuple[str, ...]]]
    units = [(tree / _COMMON / name, name, ()) for name in _BASE]
    units += [(tree / _COMMON / family / f"{family}_checks.cc", "checks", ())]
    units += [(out / "glue.cc", "registration", ())]
    units += [(tree / kernel, isa, flags) for isa, flags in _ISAS.items()]
    torch_folder = Path(torch.__file__).parent
    includes = [f"-I{tree}", f"-I{out}", "-isystem", str(torch_folder / "include")]

    def compile_unit(unit: tuple[Path, str, tuple[str, ...]]) -> str:
        source, name, flags = unit
        target = str(out / f"{name}.o")
        _run(tree, "g++", *_FLAGS, _STABLE_ABI, *flags, *includes, "-c", str(source), "-o", target)
        return target

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compile_unit, units))
    library = out / f"lib{family}.so"
    _run(
        tree,
        "g++",
        "-shared",
        *objects,
        f"-L{torch_folder / 'lib'}",
        "-ltorch_cpu",
        "-o",
        str(library),
    )
    return library


def _generate(tree: Path, kind: str, target: Path, *arguments: str) -> None:
    _run(tree, sys.executable, "-m", "rtp_llm.ops.generate", kind, str(target), *arguments)


def _run(tree: Path, *command: str) -> None:
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}"[-8000:])
