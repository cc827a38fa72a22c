# SPDX-License-Identifier: Apache-2.0
"""Run every check of ./dev lint in turn; --fix applies the automatic fixes."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.lint import architecture, cycles, layers, limits, registrations, rooms, sizes, sources

BUILDIFIER = "tools/lint/node_modules/.bin/buildifier"
PRETTIER = "tools/lint/node_modules/.bin/prettier"
PAGE = ("page/build.mjs", "page/source")


@dataclass(frozen=True)
class Check:
    """A check by a command (and the command that mends) or by a function of ours.

    `advice`: what it says is printed and fails nothing.
    """

    name: str
    command: Sequence[str] = ()
    mend: Sequence[str] = ()
    function: Callable[[Path], list[str]] | None = None
    advice: bool = False


def checks(root: Path) -> Iterator[Check]:
    """Return the checks of the tree at `root`, quick ones first."""
    python = [sys.executable, "-m"]
    yield Check("sizes", function=sizes.check)
    yield Check("layers", function=layers.check)
    yield Check("cycles", function=cycles.check)
    yield Check("rooms", function=rooms.check)
    yield Check("architecture", function=architecture.check)
    yield Check("registrations of kernels", function=registrations.check)
    licenses = [*python, "tools.lint.licenses"]
    yield Check("licenses", licenses, [*licenses, "--fix"])
    yield Check("limits", function=limits.advise, advice=True)
    yield Check("subject of the commit", function=limits.check_subject)
    ruff_format = [*python, "ruff", "format", "--quiet"]
    yield Check("ruff format", [*ruff_format, "--diff", "."], [*ruff_format, "."])
    ruff = [*python, "ruff", "check", "--quiet", "."]
    yield Check("ruff", ruff, [*ruff, "--fix"])
    clang_format = [str(Path(sys.executable).parent / "clang-format")]
    if cpp := [str(path.relative_to(root)) for path in sources.cpp(root)]:
        check = [*clang_format, "--dry-run", "--Werror", *cpp]
        yield Check("clang-format", check, [*clang_format, "-i", *cpp])
    starlark = [str(path.relative_to(root)) for path in sources.starlark(root)]
    yield Check(
        "buildifier",
        [BUILDIFIER, "-mode=diff", "-lint=warn", "-warnings=load,unused-variable", *starlark],
        [BUILDIFIER, "-lint=fix", "-warnings=load,unused-variable", *starlark],
    )
    prettier = [PRETTIER, "--log-level=warn"]
    yield Check("prettier", [*prettier, "--check", *PAGE], [*prettier, "--write", *PAGE])
    yield Check("mypy", [*python, "mypy", "--no-error-summary"])


def main() -> int:
    """Runs the checks in the source tree and prints a line for each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", action="store_true", help="mend what can be mended")
    parser.add_argument("--report", type=Path, help="JSON file for the numbers of checks")
    options = parser.parse_args()
    root = Path(os.environ["BUILD_WORKSPACE_DIRECTORY"])
    outcomes = [_run(check, root, fix=options.fix) for check in checks(root)]
    if options.report:
        counts = {"passed": outcomes.count(True), "failed": outcomes.count(False)}
        options.report.write_text(json.dumps(counts))
    return 0 if all(outcomes) else 1


def _run(check: Check, root: Path, *, fix: bool) -> bool:
    started = time.monotonic()
    if check.function:
        complaints = check.function(root)
    else:
        complaints = _command(check.mend if fix and check.mend else check.command, root)
    for complaint in complaints:
        print(complaint)
    failed = bool(complaints) and not check.advice
    outcome = "failed" if failed else "passed"
    print(f"{outcome}: {check.name} ({time.monotonic() - started:.1f} s)", flush=True)
    return not failed


def _command(command: Sequence[str], root: Path) -> list[str]:
    """Run the command and return its complaints; a silent failure counts as one."""
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if done.returncode == 0:
        return []
    text = (done.stdout + done.stderr).strip()
    return [text or f"{' '.join(command[:4])} ended with exit code {done.returncode}"]


if __name__ == "__main__":
    sys.exit(main())
