# SPDX-License-Identifier: Apache-2.0
"""./dev bench: the figures of docs/performance.md, one benchmark each."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from tools.dev import bazel
from tools.dev.steps import CALLED_FROM, ROOT, StepError

_FOLDER = ROOT / "benchmark"
_IS_PROGRAM = 'if __name__ == "__main__":'


def bench(arguments: Sequence[str]) -> int:
    """Runs the named benchmark, or lists them all."""
    known = benchmarks()
    if not arguments or arguments[0].startswith("-"):
        for name, purpose in known.items():
            print(f"{name:16} {purpose}")
        return 0
    name, *rest = arguments
    if name not in known:
        raise StepError(f"no benchmark {name!r}", f"the benchmarks are {', '.join(known)}")
    return bazel.run("run", f"//benchmark:{name}", "--", *absolute_file(rest))


def absolute_file(arguments: Sequence[str]) -> list[str]:
    """The file after --json, seen from where ./dev was called: Bazel runs programs elsewhere."""
    flags = ["", *arguments]
    return [
        str(CALLED_FROM / word) if flags[index] == "--json" else word
        for index, word in enumerate(arguments)
    ]


def benchmarks() -> dict[str, str]:
    """Name and first line of the description of every benchmark."""
    found = {}
    for path in sorted(_FOLDER.glob("*.py")):
        text = path.read_text()
        if _IS_PROGRAM in text:
            found[path.stem] = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    return found
