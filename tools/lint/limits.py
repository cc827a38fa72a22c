# SPDX-License-Identifier: Apache-2.0
"""Advice on shape, which lint prints and nobody has to follow; the subject of a commit has to fit.

A folder of few files is found through, a function of few parameters is called rightly, and a long
parameter list stands in one place.
"""

from __future__ import annotations

import ast
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from tools.lint import sources

FOLDER_FILES = 25
PARAMETERS = 8
SAME_LISTS = 1
SUBJECT_CHARACTERS = 72
_OF_TESTS = ("_test", "_for_tests")


def advise(root: Path) -> list[str]:
    """Return one line for everything in the tree at `root` that exceeds a limit."""
    return [*_folders(root), *_parameters(root)]


def check_subject(root: Path) -> list[str]:
    """A complaint about the subject of the latest commit, where `root` is a git tree."""
    if not (root / ".git").exists():
        return []
    command = ["git", "log", "-1", "--format=%s"]
    subject = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    length = len(subject.strip())
    if length <= SUBJECT_CHARACTERS:
        return []
    return [f"the commit's subject has {length} characters; at most {SUBJECT_CHARACTERS} fit"]


def _folders(root: Path) -> Iterator[str]:
    """Folders with many files, not counting tests."""
    files = [*sources.python(root), *sources.cpp(root)]
    counts = Counter(path.parent for path in files if not path.stem.endswith(_OF_TESTS))
    for folder, count in counts.most_common():
        if count > FOLDER_FILES:
            yield f"{folder.relative_to(root)}/ has {count} files; {FOLDER_FILES} are advised"


def _parameters(root: Path) -> Iterator[str]:
    """Functions with many parameters, and lists of them that are written more than once."""
    lists: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for path in sources.python(root):
        for node in ast.walk(ast.parse(path.read_text(), str(path))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                names = _names(node.args)
                if len(names) > PARAMETERS:
                    where = f"{path.relative_to(root)}:{node.lineno}: {node.name}"
                    yield f"{where} has {len(names)} parameters; {PARAMETERS} are advised"
                    lists[names].append(where)
    for names, places in lists.items():
        if len(places) > SAME_LISTS:
            yield f"the same {len(names)} parameters stand in {len(places)} lists: " + ", ".join(
                places
            )


def _names(arguments: ast.arguments) -> tuple[str, ...]:
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    names = [argument.arg for argument in every]
    return tuple(names[1:] if names[:1] in (["self"], ["cls"]) else names)
