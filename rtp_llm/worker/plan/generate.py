# SPDX-License-Identifier: Apache-2.0
"""Writes the C++ half of the declaration: ``python -m rtp_llm.worker.plan.generate``."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

from rtp_llm.worker.plan import step_plan
from rtp_llm.worker.plan.arrays import ARRAYS, GROUP_ARRAYS, NUMBERS
from rtp_llm.worker.plan.extents import Extent

PATH = Path(__file__).parents[2] / "cpp" / "scheduler" / "batch_arrays.inc"

_HEADER = """\
// Generated from rtp_llm/worker/plan/step_plan.py by `python -m rtp_llm.worker.plan.generate`.
// Who includes it defines what becomes of each number or array of a step: see batch.h.
"""
_MACROS = {
    "STEP_NUMBER": "name",
    "STEP_ARRAY": "type, name, extent, needed",
    "GROUP_ARRAY": "type, name, extent",
}


def batch_arrays() -> str:
    """The text of ``PATH``."""
    documents = _documents()
    lines = [_HEADER]
    for macro, parameters in _MACROS.items():
        lines += [f"#ifndef {macro}", f"#define {macro}({parameters})", "#endif"]
    lines.append("")
    for name in NUMBERS:
        lines += [*_comment(documents.get(name, "")), f"STEP_NUMBER({name})"]
    for macro, arrays in (("STEP_ARRAY", ARRAYS), ("GROUP_ARRAY", GROUP_ARRAYS)):
        for each in arrays:
            text = f"{each.extent.value}. {documents.get(each.name, '')}"
            needed = "true" if each.needs is None else f"config.{each.needs}"
            last = f", {needed}" if macro == "STEP_ARRAY" else ""
            row = f"{macro}({each.dtype}_t, {each.name}, {_enumerator(each.extent)}{last})"
            lines += ["", *_comment(text), row]
    lines += ["", *(f"#undef {macro}" for macro in _MACROS)]
    return "\n".join(lines) + "\n"


def _enumerator(extent: Extent) -> str:
    return "k" + extent.name.title().replace("_", "")


def _comment(text: str) -> Iterator[str]:
    for paragraph in text.replace("``", "").split("\n\n"):
        for line in textwrap.wrap(" ".join(paragraph.split()), 97):
            yield f"// {line}"


def _documents() -> dict[str, str]:
    """The string after each field of the declaration."""
    found = {}
    for node in ast.walk(ast.parse(Path(step_plan.__file__).read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ClassDef):
            continue
        for field, text in zip(node.body, node.body[1:], strict=False):
            if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
                continue
            if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                found[field.target.id] = str(text.value.value)
    return found


if __name__ == "__main__":
    PATH.write_text(batch_arrays(), encoding="utf-8")
