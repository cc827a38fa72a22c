# SPDX-License-Identifier: Apache-2.0
"""Modules of the package import each other in one direction only, even inside functions.

An import that is hidden in a function or behind TYPE_CHECKING couples two modules as much as one at
the top: neither can be read, moved or tested without the other.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tools.lint import sources

PACKAGE = "rtp_llm"
OF_TESTS = ("_test.py", "_for_tests.py")

Graph = Mapping[str, set[str]]


def check(root: Path) -> list[str]:
    """Return one complaint per import cycle of the package at `root`, with its path."""
    graph = import_graph(root)
    cycles = (way_round(graph, group) for group in components(graph))
    return [f"import cycle: {' -> '.join(cycle)}" for cycle in cycles]


def import_graph(root: Path) -> Graph:
    """Module -> the modules of the package that it names in an import, wherever in the file.

    The `__init__.py` of a package above an imported module is not an edge: Python runs it, but
    nothing in the importing module depends on it.
    """
    files = {
        _module(path.relative_to(root)): path
        for path in sources.python(root)
        if path.relative_to(root).parts[0] == PACKAGE and not path.name.endswith(OF_TESTS)
    }
    return {
        module: set(_imported(ast.parse(path.read_text(), str(path)), files)) - {module}
        for module, path in files.items()
    }


def components(graph: Graph) -> Iterator[set[str]]:
    """Return the sets of two or more modules that all reach each other (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(node: str) -> Iterator[set[str]]:
        index[node] = low[node] = len(index)
        stack.append(node)
        for below in sorted(graph[node]):
            if below not in index:
                yield from visit(below)
                low[node] = min(low[node], low[below])
            elif below in stack:
                low[node] = min(low[node], index[below])
        if low[node] == index[node]:
            start = stack.index(node)
            found = set(stack[start:])
            del stack[start:]
            if len(found) > 1:
                yield found

    for node in sorted(graph):
        if node not in index:
            yield from visit(node)


def way_round(graph: Graph, group: set[str]) -> list[str]:
    """A shortest cycle through the first module of `group`, which starts and ends it."""
    start = min(group)
    queue = [[start]]
    seen: set[str] = set()
    for way in queue:  # grows while it is read: breadth first
        for below in sorted(graph[way[-1]] & group):
            if below == start:
                return [*way, start]
            if below not in seen:
                seen.add(below)
                queue.append([*way, below])
    raise AssertionError(f"{start} is in no cycle")


def _imported(tree: ast.AST, modules: Iterable[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in modules:
                    yield inner
                elif node.module in modules:
                    yield node.module


def _module(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
