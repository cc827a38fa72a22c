# SPDX-License-Identifier: Apache-2.0
"""Length limits: files, functions, and the median function of the runtime package."""

from __future__ import annotations

import ast
import re
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.lint import sources

FILE_LINES, MAX_FILE_LINES = 400, 600
FUNCTION_LINES, MAX_FUNCTION_LINES = 40, 80
MEDIAN_FUNCTION_LINES = 10
WAIVERS = Path("tools/lint/waivers.txt")

# In formatted C++, the head of a definition starts at the margin (or one step inside a class), and
# its closing brace is alone in the same column. Blocks inside a function are not definitions.
_CPP_NOT_A_HEAD = re.compile(
    r"^ {3}|^\s*(?:namespace|class|struct|enum|union|extern)\b"
    r"|^\s*(?:if|for|while|switch|else|do|try|return)\b"
    r"|\[[^\]]*\] ?\(|[^=!<>+*/-]= "
)
_CPP_ATTRIBUTE = re.compile(r"__attribute__\(\(.*?\)\) ?")
_CPP_NAME = re.compile(r"([\w:~]+)\(")
_ENDS_BEFORE = re.compile(r"[;}{:]\s*$|^\s*(?://|#|template\b)")


@dataclass(frozen=True)
class Length:
    """Lines of a file or of a function in it."""

    path: str
    line: int
    name: str  # empty: the file
    lines: int

    @property
    def key(self) -> str:
        return f"{self.path}::{self.name}" if self.name else self.path

    @property
    def limits(self) -> tuple[int, int]:
        if self.name:
            return FUNCTION_LINES, MAX_FUNCTION_LINES
        return FILE_LINES, MAX_FILE_LINES


def check(root: Path) -> list[str]:
    """Return complaints about the tree at `root`; empty when every limit is kept."""
    lengths = list(measure(root))
    return [*_over_limits(lengths, read_waivers(root / WAIVERS)), *_package(lengths)]


def measure(root: Path) -> Iterator[Length]:
    """Length of every file and function of the tree."""
    for path in sources.python(root):
        yield from of_python(str(path.relative_to(root)), path.read_text())
    for path in sources.cpp(root):
        yield from of_cpp(str(path.relative_to(root)), path.read_text())


def of_python(path: str, text: str) -> Iterator[Length]:
    """The file and its functions, nested ones by themselves and in what holds them."""
    yield Length(path, 1, "", text.count("\n"))
    for node in ast.walk(ast.parse(text, path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno:
            yield Length(path, node.lineno, node.name, node.end_lineno - node.lineno + 1)


def of_cpp(path: str, text: str) -> Iterator[Length]:
    """The file and the functions that formatted source shows at the margin or in a class."""
    lines = text.splitlines()
    yield Length(path, 1, "", len(lines))
    for index, line in enumerate(lines):
        if not line.endswith("{"):
            continue
        first = _first_line(lines, index)
        head = _CPP_ATTRIBUTE.sub("", " ".join(lines[first : index + 1]))
        name = _CPP_NAME.search(head)
        if not name or _CPP_NOT_A_HEAD.search(head):
            continue
        closing = " " * (len(head) - len(head.lstrip())) + "}"
        end = next((n for n in range(index, len(lines)) if lines[n].rstrip(";") == closing), index)
        yield Length(path, first + 1, name.group(1), end - first + 1)


def read_waivers(path: Path) -> dict[str, str]:
    """Read the exceptions with their reasons: lines of `path[::function] | reason`."""
    if not path.exists():
        return {}
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    pairs = (line.partition("|") for line in lines)
    return {key.strip(): reason.strip() for key, _, reason in pairs}


def _first_line(lines: list[str], index: int) -> int:
    """Return the first line of the definition with its `{` in line `index`."""
    while index and lines[index - 1].strip() and not _ENDS_BEFORE.search(lines[index - 1]):
        index -= 1
    return index


def _over_limits(lengths: Iterable[Length], waivers: dict[str, str]) -> Iterator[str]:
    used = set()
    for length in lengths:
        soft, hard = length.limits
        where = f"{length.path}:{length.line}: {length.name or 'the file'} has {length.lines} lines"
        if length.lines > hard:
            yield f"{where}, at most {hard} are allowed; split it"
        elif length.lines > soft:
            used.add(length.key)
            if not waivers.get(length.key):
                yield f"{where}, the budget is {soft}; split it, or say why not in {WAIVERS}"
    for key in sorted(set(waivers) - used):
        yield f"{WAIVERS}: nothing needs the waiver for {key} any more; remove it"


def _package(lengths: Iterable[Length]) -> Iterator[str]:
    own = [
        length
        for length in lengths
        if length.path.startswith("rtp_llm/")
        and re.search(r"(?<!_test)(?<!_for_tests)\.py$", length.path)
    ]
    functions = [length.lines for length in own if length.name]
    if functions and statistics.median(functions) > MEDIAN_FUNCTION_LINES:
        yield f"the median function of rtp_llm/ has {statistics.median(functions):.0f} lines"
