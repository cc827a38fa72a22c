# SPDX-License-Identifier: Apache-2.0
"""Commands in workflows and Dockerfiles, as their engines would run them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True)
class Stage:
    """One image of a Dockerfile: what it starts from, its instructions in their order."""

    image: str
    name: str
    instructions: tuple[tuple[str, str], ...]

    def all_of(self, keyword: str) -> list[str]:
        return [value for name, value in self.instructions if name == keyword]


def jobs(file: Path) -> dict[str, list[str]]:
    """The `run` commands of each job of a workflow, in their order."""
    workflow: dict[str, Any] = yaml.safe_load(file.read_text())
    return {
        name: [step["run"].strip() for step in job["steps"] if "run" in step]
        for name, job in workflow["jobs"].items()
    }


def stages(file: Path) -> list[Stage]:
    """The stages of a Dockerfile; lines that end with a backslash are joined."""
    found: list[tuple[str, str, list[tuple[str, str]]]] = []
    for line in _lines(file.read_text()):
        keyword, _, value = line.partition(" ")
        if keyword == "FROM":
            image, _, name = value.partition(" AS ")
            found.append((image, name, []))
        else:
            found[-1][2].append((keyword, value.strip()))
    return [Stage(image, name, tuple(lines)) for image, name, lines in found]


def _lines(text: str) -> Iterator[str]:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    yield from "\n".join(lines).replace("\\\n", " ").splitlines()
