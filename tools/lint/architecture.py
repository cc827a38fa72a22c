"""ARCHITECTURE.md is true: its files exist, in an order that imports keep; no room is missing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tools.lint import layers

PAGE = "ARCHITECTURE.md"
MOST_FILES = 12
_PASSED = re.compile(r"^\d+\. `([^`]+)`", re.MULTILINE)
_ROOM = re.compile(r"^\| `(rtp_llm/\w+)/`", re.MULTILINE)


def check(root: Path) -> list[str]:
    """Complaints about the page at `root`."""
    page = (root / PAGE).read_text()
    passed = _PASSED.findall(page)
    return [*_files(root, passed), *_order(passed), *_rooms(root, set(_ROOM.findall(page)))]


def _files(root: Path, passed: list[str]) -> Iterator[str]:
    if not 1 <= len(passed) <= MOST_FILES:
        yield f"{PAGE}: lists {len(passed)} files of a request, 1 to {MOST_FILES} are wanted"
    for path in passed:
        if not (root / path).is_file():
            yield f"{PAGE}: {path} does not exist"


def _order(passed: list[str]) -> Iterator[str]:
    rooms = dict.fromkeys(layers.room_of(path) for path in passed if path.endswith(".py"))
    above: set[str | None] = set()
    for room in rooms:
        for upwards in sorted(layers.MAY_IMPORT.get(room or "", frozenset()) & above):
            yield f"{PAGE}: {room} comes after {upwards}, which it may import"
        above.add(room)


def _rooms(root: Path, listed: set[str]) -> Iterator[str]:
    for build in sorted(root.glob("rtp_llm/*/BUILD")):
        room = build.parent.relative_to(root).as_posix()
        if room not in listed:
            yield f"{PAGE}: the room {room}/ has no line"
