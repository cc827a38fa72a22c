# SPDX-License-Identifier: Apache-2.0
"""No AVX code outside the functions that are only called on machines that have it.

The linker keeps one copy of an inline function or template that several files instantiate; if the
file with the AVX-512 flags wins, the library crashes on older machines although a scalar kernel
was picked. The disassembly of the whole library shows it.
"""

from __future__ import annotations

import re
import subprocess

import pytest

from rtp_llm import native

# Registers, and the namespaces whose functions may use them.
_RULES = (
    (re.compile(r"%zmm|%[xy]mm(1[6-9]|2\d|3[01])|%k[0-7]"), re.compile("avx512")),
    (re.compile(r"%ymm|\bv[a-z0-9]+ .*%xmm"), re.compile("avx2|avx512")),
)


def _functions(disassembly: str) -> dict[str, str]:
    parts = re.split(r"^[0-9a-f]+ <(.+)>:$", disassembly, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.fixture(scope="module")
def functions() -> dict[str, str]:
    command = ["objdump", "-d", "--no-show-raw-insn", str(native.ops_library_path())]
    return _functions(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_disassembly_shows_every_variant(functions: dict[str, str]) -> None:
    for variant in ("scalar", "avx2", "avx512"):
        assert any(variant in name and "rms_norm" in name for name in functions)
    vectors = [name for name, code in functions.items() if "%zmm" in code]
    assert len(vectors) > 5


def test_no_vector_code_outside_its_namespace(functions: dict[str, str]) -> None:
    wrong = {
        name: match.group()
        for name, code in functions.items()
        for registers, allowed in _RULES
        if (match := registers.search(code)) and not allowed.search(name)
    }
    assert not wrong
