# SPDX-License-Identifier: Apache-2.0
"""Which third-party packages a package's modules import, found without importing anything."""

from __future__ import annotations

import ast
import importlib.metadata
import sys
from collections.abc import Iterator, Mapping

from packaging.requirements import Requirement

from tools.wheel.metadata import canonical


def third_party(sources: Mapping[str, str], package: str) -> dict[str, set[str]]:
    """Module -> the files of `sources` ({path: text}) that import it, wherever in the file.

    Top-level names only, without the standard library, `package` itself and what only a type
    checker reads.
    """
    found: dict[str, set[str]] = {}
    own = {*sys.stdlib_module_names, package}
    for path, text in sources.items():
        for name in _imported(ast.parse(text)):
            top = name.partition(".")[0]
            if top not in own:
                found.setdefault(top, set()).add(path)
    return found


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level:
        yield str(node.module)
    children = ast.iter_child_nodes(node)
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        children = iter(node.orelse)
    for child in children:
        yield from _imported(child)


def undeclared(modules: Mapping[str, set[str]], requires: list[str]) -> dict[str, set[str]]:
    """Return the `modules` that no package of `requires` (Requires-Dist) provides or depends on."""
    declared = {canonical(Requirement(line).name) for line in requires}
    declared |= {brought for name in declared for brought in _brought(name)}
    homes = importlib.metadata.packages_distributions()
    return {
        module: files
        for module, files in modules.items()
        if not declared & {canonical(home) for home in homes.get(module, [module])}
    }


def _brought(name: str) -> Iterator[str]:
    """Yield an installed package's unconditional dependencies: no extras, no other platforms."""
    try:
        lines = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:  # another device's
        return
    for requirement in map(Requirement, lines):
        if not requirement.marker or requirement.marker.evaluate({"extra": ""}):
            yield canonical(requirement.name)
