# SPDX-License-Identifier: Apache-2.0
"""Compiles a SYCL source to SPIR-V, a module for each kernel; run by the rule sycl_library.

    python -I compile_spirv.py --compiler PROGRAM --output OUT.cc --modules FOLDER --root BIN_DIR
        SOURCE HEADER...

The modules are KERNEL.spv in FOLDER, and OUT.cc registers them. PROGRAM compiles one text: what the
source includes in quotes is put in its place, once, as `#pragma once` has it. <Headers> stay.
"""

from __future__ import annotations

import argparse
import os
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

_INCLUDE = re.compile(r'\s*#\s*include\s+"([^"]+)"')
_ONCE = re.compile(r"\s*#\s*pragma\s+once\b")

# The same options as for icpx in //3rdparty/gpus/sycl:toolchain.bzl: NaN and infinity have a
# meaning in masks, and a kernel keeps every argument of its source. A module for each kernel, so
# that a process loads what it runs, and a device without float16 loads the others.
_OPTIONS = (
    "-std=c++17",
    "-O2",
    "-ffp-model=precise",
    "-fno-sycl-dead-args-optimization",
    "-fsycl-device-code-split=per_kernel",
)
# What the compiler puts before the name of a free function.
_PREFIX = "__sycl_kernel_"

# Of the SPIR-V specification.
_MAGIC = 0x07230203
_HEADER_WORDS = 5
_ENTRY_POINT = 15
_DECORATE = 71
_LINKAGE = 41
_IMPORT = 1


class CompileError(Exception):
    """The source has no SPIR-V that every device can load; the message says why."""


def main() -> int:
    """Write the files and return the exit code; what is wrong is said on standard error."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--compiler", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--modules", type=Path, required=True)
    parser.add_argument("--root", required=True, help="folder of generated headers")
    parser.add_argument("source", type=Path)
    parser.add_argument("headers", type=Path, nargs="*")
    options = parser.parse_args()
    headers = {str(path).removeprefix(options.root + "/"): path for path in options.headers}
    try:
        text = "".join(_flatten(str(options.source), options.source, headers, set()))
        modules = _compile(options.compiler.absolute(), text)
    except CompileError as error:
        print(f"{options.source}: {error}", file=sys.stderr)
        return 1
    options.modules.mkdir(exist_ok=True)
    for kernel, code in modules.items():
        (options.modules / f"{kernel}.spv").write_bytes(code)
    options.output.write_text(_registration(options.source.stem, modules), encoding="utf-8")
    return 0


def _compile(compiler: Path, text: str) -> dict[str, bytes]:
    """The modules by their kernels, in order of the names."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source.cc")
        source.write_text(text, encoding="utf-8")
        done = subprocess.run(
            [compiler, source, *_OPTIONS],
            cwd=folder,
            env={**os.environ, "SYCL_DUMP_IMAGES": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        if done.returncode:
            raise CompileError(f"does not compile\n{done.stderr}")
        codes = [path.read_bytes() for path in Path(folder).glob("*.spv")]
    modules = {_kernel_of(code): code for code in codes}
    if not modules or len(modules) != len(codes):
        raise CompileError(f"{len(codes)} modules have these kernels: {sorted(modules)}")
    return dict(sorted(modules.items()))


def _kernel_of(code: bytes) -> str:
    """The only kernel of a module."""
    words = struct.unpack(f"<{len(code) // 4}I", code)
    if words[0] != _MAGIC:
        raise CompileError("the compiler wrote a module that is not SPIR-V")
    kernels = []
    at = _HEADER_WORDS
    while at < len(words):
        operation, count = words[at] & 0xFFFF, words[at] >> 16
        if not count:
            raise CompileError("the compiler wrote a module with an empty instruction")
        if operation == _ENTRY_POINT:
            kernels.append(_string(code, at + 3))
        if operation == _DECORATE and words[at + 2] == _LINKAGE:
            _check_linkage(_string(code, at + 3), words[at + count - 1])
        at += count
    if len(kernels) != 1 or not kernels[0].startswith(_PREFIX):
        raise CompileError(f"a module has the entry points {kernels}, expected one free function")
    return kernels[0].removeprefix(_PREFIX)


def _string(code: bytes, word: int) -> str:
    return code[4 * word : code.index(b"\0", 4 * word)].decode()


def _check_linkage(name: str, linkage: int) -> None:
    """Refuse functions of libraries, which a device does not find when it loads the module."""
    if linkage == _IMPORT and not name.startswith("__spirv_BuiltIn"):
        raise CompileError(f"needs the function {name}, which no driver has: write it otherwise")


def _flatten(name: str, path: Path, headers: Mapping[str, Path], seen: set[Path]) -> Iterator[str]:
    seen.add(path)
    yield f'#line 1 "{name}"\n'
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        include = _INCLUDE.match(line)
        if include:
            yield from _included(f"{name}:{number}", include[1], headers, seen)
            yield f'#line {number + 1} "{name}"\n'
        else:
            yield "\n" if _ONCE.match(line) else line + "\n"


def _included(
    place: str, include: str, headers: Mapping[str, Path], seen: set[Path]
) -> Iterator[str]:
    if include not in headers:
        raise CompileError(
            f'{place}: "{include}" is not among the headers of this sycl_library: name it in hdrs, '
            "or a library that has it in deps, by its path from the root of the repository"
        )
    if headers[include] not in seen:
        yield from _flatten(include, headers[include], headers, seen)


def _registration(name: str, modules: Mapping[str, bytes]) -> str:
    lines = ["#include <cstdint>\n", '#include "rtp_llm/kernels/xpu/runtime/program.h"\n']
    rows = []
    for index, (kernel, code) in enumerate(modules.items()):
        words = ",".join(map(hex, struct.unpack(f"<{len(code) // 4}I", code)))
        lines.append(f"static const uint32_t code{index}[] = {{{words}}};")
        rows.append(f'{{"{kernel}", code{index}, sizeof code{index}}}')
    lines.append(f'static const rtp_llm::xpu::Program program("{name}", {{{", ".join(rows)}}});')
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
