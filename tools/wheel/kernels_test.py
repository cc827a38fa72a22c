# SPDX-License-Identifier: Apache-2.0
"""The operator library of the build's device: it has that device's kernels, and the CPU's.

The dispatcher is asked, in a process that has the torch of the build. What a library of a device
needs besides has stand-ins: the libraries' names and symbols, without the device.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tools.wheel import symbols

(BUILT,) = Path("rtp_llm/lib").glob("librtp_llm_*.so")
DEVICE = BUILT.stem.removeprefix("librtp_llm_")
TARGETS: list[str] = json.loads(Path("arch_config/targets.json").read_text()).get(DEVICE, [])
_KEY = {"cpu": "CPU", "cuda": "CUDA", "rocm": "CUDA", "xpu": "XPU"}[DEVICE]

# What each device has natively.
_OPERATORS = {"rms_norm", "fused_add_rms_norm", "qk_rms_norm", "silu_and_mul", "rope_kv_write"}
_OPERATORS |= {"copy_blocks", "paged_attention", "sample", "embedding", "gelu_and_mul", "linear"}
_OPERATORS |= {"add_logit_bias", "apply_penalties", "ban_repeated_ngrams", "top_logprobs"}
_OPERATORS |= {"sigmoid_gate", "apply_token_bitmask", "causal_conv1d", "gated_delta_rule"}
_OPERATORS |= {"select_topk", "group_topk", "fake_balance_expert", "sort_by_expert"}
_OPERATORS |= {"grouped_linear", "sum_experts", "add_sigmoid_gated"}
if DEVICE == "xpu":
    _OPERATORS |= {"mla_attention", "mla_rotate_and_store", "int8_linear", "w8a8_int8_linear"}
else:
    _OPERATORS |= {"rotate_and_store", "match_ngrams", "append_accepted", "mamba2_scan"}
if DEVICE == "cpu":
    _OPERATORS |= {"mxfp4_grouped_linear", "table4_grouped_linear"}
    _OPERATORS |= {"wna16_linear", "wna16_grouped_linear", "gguf_linear", "gguf_grouped_linear"}
if DEVICE == "cuda":
    _OPERATORS |= {"decode_attention", "route_experts", "add_experts"}
    _OPERATORS |= {"mxfp4_experts_gate_up", "mxfp4_experts_down"}

_PROGRAM = """
import sys, torch
library, key, *names = sys.argv[1:]
torch.ops.load_library(library)
has = torch._C._dispatch_has_kernel_for_dispatch_key
print(*(name for name in names if has(f"rtp_llm::{name}", key)))
print(torch.ops.rtp_llm.schema_hash())
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Place the library where a wheel installs it, next to torch."""
    packages = tmp_path_factory.mktemp("site-packages")
    (packages / "torch").symlink_to(Path(torch.__file__).parent)
    folder = packages / "rtp_llm" / "lib"
    folder.mkdir(parents=True)
    return Path(shutil.copy(BUILT, folder))


@pytest.fixture(scope="module")
def stand_ins(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library for each that this machine lacks, with the symbols that no other has."""
    folder = tmp_path_factory.mktemp("stand_ins")
    shared = symbols.read(library)
    missing = [name for name in shared.needed if not _loads(name)]
    torch_libraries = [ctypes.CDLL(str(path)) for path in _torch_libraries()]
    present = [name for name in shared.needed if _loads(name)]
    known = [*torch_libraries, *(ctypes.CDLL(name) for name in present if "torch" not in name)]
    undefined = [name for name in shared.undefined if not any(hasattr(lib, name) for lib in known)]
    source = "".join(f"void {name}(void) {{}}\n" for name in sorted(undefined))
    for number, name in enumerate(missing):
        command = ["gcc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{name}", "-o", str(folder / name)]
        text = source if number == 0 else ""
        subprocess.run([*command, "-x", "c", "-"], input=text, text=True, check=True)
    return folder


def _torch_libraries() -> list[Path]:
    folder = Path(torch.__file__).parent / "lib"
    return [folder / "libc10.so", folder / "libtorch_cpu.so"]


def _loads(name: str) -> bool:
    if (Path(torch.__file__).parent / "lib" / name).exists():
        return True
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def test_the_dispatcher_has_the_devices_kernels(library: Path, stand_ins: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(library), _KEY, *sorted(_OPERATORS)],
        env={**os.environ, "LD_LIBRARY_PATH": str(stand_ins)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    names, _ = done.stdout.splitlines()
    assert set(names.split()) == _OPERATORS


def test_the_cpu_kernels_are_there_too(library: Path, stand_ins: Path) -> None:
    program = _PROGRAM + "print(torch.ops.rtp_llm.rms_norm(torch.ones(1, 8), torch.ones(8), 0.0))"
    done = subprocess.run(
        [sys.executable, "-c", program, str(library), "CPU", "linear"],
        env={**os.environ, "LD_LIBRARY_PATH": str(stand_ins)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("linear\n")
    assert "tensor([[1., 1." in done.stdout


def test_the_device_code_is_there(library: Path) -> None:
    sections, data = symbols.read(library).sections, library.read_bytes()
    if DEVICE == "cuda":
        assert ".nv_fatbin" in sections
        assert _listed_cubins(library) in (None, set(TARGETS))
    elif DEVICE == "rocm":
        assert ".hip_fatbin" in sections
        for target in TARGETS:
            assert f"amdgcn-amd-amdhsa--{target}".encode() in data
    elif DEVICE == "xpu":
        # Compiled by icpx, or a module of SPIR-V for each kernel; never its source.
        compiled = any(name.startswith("__CLANG_OFFLOAD_BUNDLE__") for name in sections)
        assert compiled or data.count(b"\x03\x02\x23\x07") > 80
        assert b"nd_range_kernel" not in data
    else:
        assert not {".nv_fatbin", ".hip_fatbin"} & sections


def _listed_cubins(library: Path) -> set[str] | None:
    """The processors that the toolkit finds code for; None without its tool."""
    tool = shutil.which("cuobjdump") or "/usr/local/cuda/bin/cuobjdump"
    if not Path(tool).exists():
        return None
    listed = subprocess.run([tool, "--list-elf", library], capture_output=True, text=True).stdout
    return {line.rsplit(".", 2)[1] for line in listed.splitlines() if line.endswith(".cubin")}
