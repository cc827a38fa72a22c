# SPDX-License-Identifier: Apache-2.0
"""Tables of figures on the terminal, and the same as JSON."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch


def parser(description: str) -> argparse.ArgumentParser:
    """Return the parser with the flags that every benchmark has."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--json", metavar="FILE", type=pathlib.Path, help="write the figures here")
    made.add_argument("--quick", action="store_true", help="fewer rounds and small shapes only")
    made.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    return made


def machine() -> dict[str, Any]:
    """Return a description of the machine on which the figures are measured."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.platform(),
    }


def _processor() -> str:
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


@dataclass
class Report:
    """Rows under named columns, notes below; printed as a Markdown table."""

    title: str
    columns: Sequence[str]
    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, **row: Any) -> None:
        """One row; a column without a value stays empty."""
        self.rows.append(row)

    def print(self) -> None:
        """Write the table to standard output."""
        cells = [list(self.columns)]
        cells += [[_show(row.get(name)) for name in self.columns] for row in self.rows]
        widths = [max(len(line[i]) for line in cells) for i in range(len(self.columns))]
        print(f"\n{self.title}\n")
        for number, line in enumerate(cells):
            print("| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |")
            if number == 0:
                print("|" + "|".join("-" * (width + 2) for width in widths) + "|")
        for note in self.notes:
            print(f"\n{note}")

    def write(self, path: pathlib.Path | None) -> None:
        """The same as JSON, with the machine."""
        if path is not None:
            content = {"title": self.title, "machine": machine(), "rows": self.rows}
            path.write_text(json.dumps({**content, "notes": self.notes}, indent=1) + "\n")
            print(f"\nwritten to {path}")


def _show(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    if isinstance(value, tuple):
        return " - ".join(_show(each) for each in value)
    return str(value)
