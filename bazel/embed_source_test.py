# SPDX-License-Identifier: Apache-2.0
"""The text that sycl_library embeds, compiled and read back by the host's compiler."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_READER = """\
#include <cstdio>
namespace rtp_llm::xpu {
struct Program {
  Program(const char *name, const char *text) { std::printf("%s\\n%s", name, text); }
};
}  // namespace rtp_llm::xpu
int main() {}
"""


def _embed(folder: Path, source: str, headers: dict[str, str]) -> subprocess.CompletedProcess[str]:
    script = Path("bazel/embed_source.py").resolve()
    for name, text in {"kernel.cc": source, **headers}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return subprocess.run(
        [
            *(sys.executable, "-I", "-B", str(script), "--output", "out.cc", "--root", "gen/bin"),
            *("kernel.cc", *headers),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
    )


def _embedded(folder: Path, source: str, headers: dict[str, str]) -> str:
    """Return what the generated program registers: its name, then the text."""
    done = _embed(folder, source, headers)
    assert done.returncode == 0, done.stderr
    (folder / "rtp_llm/kernels/xpu/runtime").mkdir(parents=True, exist_ok=True)
    (folder / "rtp_llm/kernels/xpu/runtime/program.h").write_text(_READER)
    subprocess.run(["g++", "-std=c++17", "-I.", "-o", "out", "out.cc"], cwd=folder, check=True)
    return subprocess.run(["./out"], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_headers_take_the_place_of_includes_once(tmp_path: Path) -> None:
    headers = {
        "a/one.h": '#pragma once\n#include <cstdint>\n#include "a/two.h"\nint one;\n',
        "gen/bin/a/two.h": "#pragma once\nint two;\n",
        "a/never.h": "int never;\n",
    }
    source = '#include "a/one.h"\n#include "a/two.h"\nint kernel;\n'
    text = _embedded(tmp_path, source, headers)
    assert text == "\n".join(
        [
            "kernel",
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


def test_any_text_survives(tmp_path: Path) -> None:
    source = 'const char* a = R"end(x)end";  // ")end_" \\ %d ä\n'
    assert _embedded(tmp_path, source, {}) == f'kernel\n#line 1 "kernel.cc"\n{source}'


@pytest.mark.parametrize("place", ["kernel.cc", "a.h"])
def test_a_header_that_is_not_there_is_named(tmp_path: Path, place: str) -> None:
    files = {"kernel.cc": '#include "a.h"\n', "a.h": "int a;\n"}
    files[place] = '\n#include "b.h"\n'
    done = _embed(tmp_path, files.pop("kernel.cc"), files)
    assert done.returncode == 1
    assert f'{place}:2: "b.h" is not among the headers of this sycl_library' in done.stderr
    assert "Traceback" not in done.stderr
