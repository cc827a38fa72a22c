# SPDX-License-Identifier: Apache-2.0
"""Writes C++ that registers a SYCL source as text; run by the rule sycl_library.

    python -I embed_source.py --output OUT.cc --root BIN_DIR SOURCE HEADER...

What the source includes in quotes is put in its place, once, as `#pragma once` has it: then the
text needs no file of this repository where it is compiled. <Headers> stay as they are.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

_INCLUDE = re.compile(r'\s*#\s*include\s+"([^"]+)"')
_ONCE = re.compile(r"\s*#\s*pragma\s+once\b")


def main() -> int:
    """Write the file and return the exit code; a missing header is named on standard error."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--root", required=True, help="folder of generated headers")
    parser.add_argument("source", type=Path)
    parser.add_argument("headers", type=Path, nargs="*")
    options = parser.parse_args()
    headers = {str(path).removeprefix(options.root + "/"): path for path in options.headers}
    try:
        text = "".join(_flatten(str(options.source), options.source, headers, set()))
    except LookupError as error:
        print(error.args[0], file=sys.stderr)
        return 1
    options.output.write_text(_registration(options.source.stem, text), encoding="utf-8")
    return 0


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
        raise LookupError(
            f'{place}: "{include}" is not among the headers of this sycl_library: name it in hdrs, '
            "or a library that has it in deps, by its path from the root of the repository"
        )
    if headers[include] not in seen:
        yield from _flatten(include, headers[include], headers, seen)


def _registration(name: str, text: str) -> str:
    """Quote the text as a raw string with a delimiter that does not occur in it."""
    fence = "end"
    while f"){fence}" in text:
        fence += "_"
    return (
        '#include "rtp_llm/kernels/xpu/runtime/program.h"\n\n'
        f'static const rtp_llm::xpu::Program program("{name}", R"{fence}({text}){fence}");\n'
    )


if __name__ == "__main__":
    sys.exit(main())
