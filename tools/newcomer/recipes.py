# SPDX-License-Identifier: Apache-2.0
"""The recipes of CONTRIBUTING.md, read as a newcomer follows them.

A recipe is a section of the page. Its fenced blocks say what to do:

    ```python title=PATH      a new file of that content (any language but diff and console)
    ```diff title=PATH        lines to add to (+) or take out of (-) a file; the others show where
    ```console                commands, after `$ `
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

NOT_SOURCES = (
    ".git",
    ".venv",
    ".clients",
    ".hypothesis",
    "__pycache__",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    "dist",
    "node_modules",
)

_FENCE = re.compile(r"^```(\w+)(?: title=(\S+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^(#+) (.*)$", re.MULTILINE)


class RecipeError(Exception):
    """Raised when the page does not match the tree that it describes; the message says where."""


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the file that it is about ("" for none), its lines."""

    language: str
    title: str
    text: str


def section(page: str, heading: str) -> str:
    """The text below `heading`, up to the next heading of its level or above; RecipeError."""
    found = [match for match in _HEADING.finditer(page) if match[2] == heading]
    if len(found) != 1:
        raise RecipeError(f"the page has {len(found)} headings {heading!r}")
    level, start = len(found[0][1]), found[0].end()
    later = (match for match in _HEADING.finditer(page, start) if len(match[1]) <= level)
    end = next(later, None)
    return page[start : end.start() if end else len(page)]


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a text, in their order."""
    return [Block(match[1], match[2] or "", match[3]) for match in _FENCE.finditer(text)]


def commands(text: str) -> list[str]:
    """Return the commands that a recipe says to run."""
    lines = (block.text.splitlines() for block in blocks(text) if block.language == "console")
    return [line[2:] for some in lines for line in some if line.startswith("$ ")]


def follow(text: str, tree: Path) -> list[Path]:
    """Write and change the files that a recipe names, in `tree`; the paths, relative to it."""
    touched = []
    for block in blocks(text):
        path = tree / block.title
        if not block.title:
            continue
        if block.language == "diff":
            path.write_text(changed(path.read_text(), block))
        elif path.exists():
            raise RecipeError(f"{block.title} is there already; the recipe makes it")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
        touched.append(Path(block.title))
    return touched


def changed(text: str, block: Block) -> str:
    """`text` with the lines of a diff block added and taken out; RecipeError if it does not fit.

    A line of three dots stands for any lines between two changes of one file.
    """
    for part in re.split(r"^ ?\.\.\.\n", block.text, flags=re.MULTILINE):
        lines = part.splitlines(keepends=True)
        before = "".join(_content(line) for line in lines if not line.startswith("+"))
        after = "".join(_content(line) for line in lines if not line.startswith("-"))
        if text.count(before) != 1 or not before:
            raise RecipeError(f"{block.title} has {text.count(before)} times:\n{before}")
        text = text.replace(before, after)
    return text


def copy_of(tree: Path, folder: Path) -> Path:
    """`folder` with a copy of the sources in `tree`, without what tools have put there."""
    folder.mkdir(parents=True)
    for path in tree.iterdir():
        if path.name in NOT_SOURCES or path.name.startswith("bazel-"):
            continue
        if path.is_dir():
            shutil.copytree(path, folder / path.name, ignore=shutil.ignore_patterns(*NOT_SOURCES))
        else:
            shutil.copy2(path, folder / path.name)
    return folder


def _content(line: str) -> str:
    return line[1:] if line[0] in "+- " else line


def paths(line: str) -> list[str]:
    """Return the paths in backticks of a line, in folders that the tree has; no examples."""
    found = re.findall(r"`((?:rtp_llm|arch_config|docs|deps|tools|3rdparty)/[\w./]+)`", line)
    return [name for name in found if "NAME" not in name]
