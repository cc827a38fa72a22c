# SPDX-License-Identifier: Apache-2.0
"""Every source file names its license in a line that tools read (https://spdx.dev)."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.lint import sources

LICENSE = "SPDX-License-Identifier: Apache-2.0"


def check(root: Path) -> list[str]:
    """Return complaints about the tree at `root`; empty when every file names the license."""
    return [
        f"{path.relative_to(root)}:1: the first line is not {_line(path)!r}; --fix adds it"
        for path in _files(root)
        if not _has(path.read_text(encoding="utf-8"))
    ]


def mend(root: Path) -> None:
    """Add the line where it is missing, after an interpreter line if there is one."""
    for path in _files(root):
        text = path.read_text(encoding="utf-8")
        if not _has(text):
            interpreter, rest = "", text
            if text.startswith("#!"):
                interpreter, _, rest = text.partition("\n")
                interpreter += "\n"
            path.write_text(f"{interpreter}{_line(path)}\n{rest}", encoding="utf-8")


def _files(root: Path) -> list[Path]:
    found = [*sources.python(root), *sources.cpp(root)]
    return [path for path in found if path.relative_to(root).parts[0] != "3rdparty"]


def _has(text: str) -> bool:
    return any(LICENSE in line for line in text.splitlines()[:2])


def _line(path: Path) -> str:
    return f"{'#' if path.suffix == '.py' else '//'} {LICENSE}"


if __name__ == "__main__":
    flags = argparse.ArgumentParser()
    flags.add_argument("--fix", action="store_true")
    if flags.parse_args().fix:
        mend(Path.cwd())
    complaints = check(Path.cwd())
    print(*complaints, sep="\n")
    sys.exit(1 if complaints else 0)
