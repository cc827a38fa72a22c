# SPDX-License-Identifier: Apache-2.0
"""The files of the source tree, without files that tools have created there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_STARLARK = ("BUILD", "WORKSPACE", "BUILD.external")
_CPP = (".cc", ".h", ".cu", ".cuh", ".hip")
_NOT_OURS = ("dist", "node_modules", "__pycache__", "build")


def python(root: Path) -> list[Path]:
    """Return every Python file in the tree."""
    return [path for path in _walk(root) if path.suffix == ".py"]


def cpp(root: Path) -> list[Path]:
    """Return every C++ or kernel file in the tree."""
    return [path for path in _walk(root) if path.suffix in _CPP]


def starlark(root: Path) -> list[Path]:
    """Return every BUILD, WORKSPACE and .bzl file in the tree."""
    return [path for path in _walk(root) if path.name in _STARLARK or path.suffix == ".bzl"]


def _walk(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if _is_ours(name))
        yield from (Path(folder, name) for name in sorted(names))


def _is_ours(folder: str) -> bool:
    return folder not in _NOT_OURS and not folder.startswith((".", "bazel-"))
