# SPDX-License-Identifier: Apache-2.0
"""The folders of a package import each other in one direction only.

The tables list the rooms of a package from the ground up: a folder with all that is in it, or
`.` for the files of the package itself. Rooms that are not listed are not part of the order.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from tools.lint.cycles import Graph, import_graph

ROOMS: dict[str, tuple[str, ...]] = {
    "rtp_llm/server": (
        "types",
        "keys",
        "http",
        "turn",
        "generation",
        "telemetry",
        "endpoint",
        "protocols",
        "openapi",
        "offload",
        ".",
    ),
    "rtp_llm/engine": (".", "client", "replicas", "ranks", "start", "process"),
}
# Folders in which no room imports another one.
APART = ("rtp_llm/server/protocols",)
# Imports from a room to one above it that are known, and how many there may be.
UPWARD: frozenset[tuple[str, str]] = frozenset()
MAX_UPWARD = 3


def check(root: Path) -> list[str]:
    """Return complaints about imports between rooms of the tree at `root`."""
    graph = import_graph(root)
    folders = {module: _folder(root, module) for module in graph}
    upward = set(_upward(graph, folders))
    complaints = [
        f"{module} imports {other}, which is above it" for module, other in upward - UPWARD
    ]
    complaints += [
        f"{module} does not import {other} any more" for module, other in UPWARD - upward
    ]
    if len(UPWARD) > MAX_UPWARD:
        complaints.append(f"{len(UPWARD)} imports go upward; at most {MAX_UPWARD} may")
    complaints += _side_by_side(graph, folders)
    return sorted(complaints + list(_mutual(graph, folders)))


def _upward(graph: Graph, folders: dict[str, PurePosixPath]) -> Iterator[tuple[str, str]]:
    for package, rooms in ROOMS.items():
        places = {module: _place(folders[module], package, rooms) for module in graph}
        for module, others in graph.items():
            here = places[module]
            for other in others:
                there = places[other]
                if here is not None and there is not None and there > here:
                    yield module, other


def _place(folder: PurePosixPath, package: str, rooms: tuple[str, ...]) -> int | None:
    """Index of the room that a folder belongs to."""
    if not folder.is_relative_to(package):
        return None
    name = (*folder.relative_to(package).parts, ".")[0]
    return rooms.index(name) if name in rooms else None


def _side_by_side(graph: Graph, folders: dict[str, PurePosixPath]) -> Iterator[str]:
    for module, others in graph.items():
        for other in others:
            for package in APART:
                here, there = _room(folders[module], package), _room(folders[other], package)
                if here and there and here != there:
                    yield f"{module} imports {other}: folders of {package} are apart"


def _room(folder: PurePosixPath, package: str) -> str | None:
    parts = folder.relative_to(package).parts if folder.is_relative_to(package) else ()
    return parts[0] if parts else None


def _mutual(graph: Graph, folders: dict[str, PurePosixPath]) -> Iterator[str]:
    """Folders that import each other; one that contains the other may."""
    edges = {
        (folders[module], folders[other]): f"{module} -> {other}"
        for module, others in graph.items()
        for other in others
    }
    for (here, there), example in edges.items():
        contained = here.is_relative_to(there) or there.is_relative_to(here)
        if here < there and (there, here) in edges and not contained:
            yield f"{here} and {there} import each other: {example}, {edges[there, here]}"


def _folder(root: Path, module: str) -> PurePosixPath:
    path = PurePosixPath(*module.split("."))
    return path if (root / path).is_dir() else path.parent
