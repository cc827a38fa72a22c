# SPDX-License-Identifier: Apache-2.0
"""What sycl_library compiles, and what it registers, with a stand-in for the SPIR-V compiler."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import pytest

# Keeps the text that it is given, and writes the modules of the test as libsycl would.
_COMPILER = """\
#!/bin/sh
cp "$1" TEXT
cp MODULES/*.spv . || exit 1
test "$SYCL_DUMP_IMAGES" = 1
"""

_READER = """\
#include <cstddef>
#include <cstdio>
#include <vector>
namespace rtp_llm::xpu {
struct Module { const char* kernel; const void* code; size_t bytes; };
struct Program {
  Program(const char* name, std::vector<Module> modules) {
    std::printf("%s\\n", name);
    for (const Module& each : modules) {
      std::printf("%s %zu ", each.kernel, each.bytes);
      for (size_t i = 0; i < each.bytes; ++i) {
        std::printf("%02x", static_cast<const unsigned char*>(each.code)[i]);
      }
      std::printf("\\n");
    }
  }
};
}  // namespace rtp_llm::xpu
int main() {}
"""


def _words_of(text: str) -> list[int]:
    data = text.encode() + b"\0"
    data += b"\0" * (-len(data) % 4)
    return list(struct.unpack(f"<{len(data) // 4}I", data))


def _instruction(operation: int, *words: int) -> list[int]:
    return [(len(words) + 1) << 16 | operation, *words]


def _module(*kernels: str, imports: tuple[str, ...] = ()) -> bytes:
    words = [0x07230203, 0x00010400, 0, 99, 0]
    for kernel in kernels:
        words += _instruction(15, 6, 1, *_words_of(kernel), 7)
    for name in imports:
        words += _instruction(71, 8, 41, *_words_of(name), 1)
    return struct.pack(f"<{len(words)}I", *words)


def _compile(
    folder: Path, source: str, headers: dict[str, str], modules: list[bytes]
) -> subprocess.CompletedProcess[str]:
    script = Path("bazel/compile_spirv.py").resolve()
    for name, text in {"kernel.cc": source, **headers}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "given").mkdir()
    for index, module in enumerate(modules):
        (folder / f"given/{index}.spv").write_bytes(module)
    compiler = folder / "compiler"
    text = _COMPILER.replace("TEXT", str(folder / "text.cc"))
    compiler.write_text(text.replace("MODULES", str(folder / "given")))
    compiler.chmod(0o755)
    return subprocess.run(
        [
            *(sys.executable, "-I", "-B", str(script), "--compiler", "compiler"),
            *("--output", "out.cc", "--modules", "modules", "--root", "gen/bin"),
            *("kernel.cc", *headers),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
    )


def _compiled_text(folder: Path, source: str, headers: dict[str, str]) -> str:
    """Return the text that the compiler is given."""
    done = _compile(folder, source, headers, [_module("__sycl_kernel_f")])
    assert done.returncode == 0, done.stderr
    return (folder / "text.cc").read_text()


def test_modules_are_registered_in_order_of_their_kernels(tmp_path: Path) -> None:
    b = _module("__sycl_kernel_b", imports=("__spirv_BuiltInWorkgroupId",))
    a = _module("__sycl_kernel_a_float16")
    done = _compile(tmp_path, "", {}, [b, a])
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "modules/b.spv").read_bytes() == b
    assert (tmp_path / "modules/a_float16.spv").read_bytes() == a
    (tmp_path / "rtp_llm/kernels/xpu/runtime").mkdir(parents=True)
    (tmp_path / "rtp_llm/kernels/xpu/runtime/program.h").write_text(_READER)
    subprocess.run(["g++", "-std=c++17", "-I.", "-o", "out", "out.cc"], cwd=tmp_path, check=True)
    said = subprocess.run(["./out"], cwd=tmp_path, check=True, capture_output=True, text=True)
    rows = [f"a_float16 {len(a)} {a.hex()}", f"b {len(b)} {b.hex()}"]
    assert said.stdout.splitlines() == ["kernel", *rows]


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ([], "does not compile"),
        ([b"\0" * 32], "not SPIR-V"),
        ([_module("__sycl_kernel_a", "__sycl_kernel_b")], "expected one free function"),
        ([_module("lambda")], "expected one free function"),
        ([_module("__sycl_kernel_a"), _module("__sycl_kernel_a")], "2 modules"),
        (
            [_module("__sycl_kernel_a", imports=("__devicelib_ConvertFToBF16INTEL",))],
            "needs the function __devicelib_ConvertFToBF16INTEL, which no driver has",
        ),
    ],
)
def test_what_a_device_cannot_load_is_refused(
    tmp_path: Path, modules: list[bytes], message: str
) -> None:
    done = _compile(tmp_path, "", {}, modules)
    assert done.returncode == 1
    assert message in done.stderr
    assert not (tmp_path / "out.cc").exists()


def test_headers_take_the_place_of_includes_once(tmp_path: Path) -> None:
    headers = {
        "a/one.h": '#pragma once\n#include <cstdint>\n#include "a/two.h"\nint one;\n',
        "gen/bin/a/two.h": "#pragma once\nint two;\n",
        "a/never.h": "int never;\n",
    }
    source = '#include "a/one.h"\n#include "a/two.h"\nint kernel;\n'
    text = _compiled_text(tmp_path, source, headers)
    assert text == "\n".join(
        [
            '#line 1 "kernel.cc"',
            '#line 1 "a/one.h"',
            "",
            "#include <cstdint>",
            '#line 1 "a/two.h"',
            "",
            "int two;",
            '#line 4 "a/one.h"',
            "int one;",
            '#line 2 "kernel.cc"',
            '#line 3 "kernel.cc"',
            "int kernel;",
            "",
        ]
    )


@pytest.mark.parametrize("place", ["kernel.cc", "a.h"])
def test_a_header_that_is_not_there_is_named(tmp_path: Path, place: str) -> None:
    files = {"kernel.cc": '#include "a.h"\n', "a.h": "int a;\n"}
    files[place] = '\n#include "b.h"\n'
    done = _compile(tmp_path, files.pop("kernel.cc"), files, [])
    assert done.returncode == 1
    assert f'{place}:2: "b.h" is not among the headers of this sycl_library' in done.stderr
    assert "Traceback" not in done.stderr
