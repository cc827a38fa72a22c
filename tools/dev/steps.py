# SPDX-License-Identifier: Apache-2.0
"""Steps of ./dev: each says what it does, and a failed one says how to proceed."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CALLED_FROM = Path(os.environ.get("RTP_LLM_CALLED_FROM") or ROOT)
# Set by --offline: nothing is downloaded or installed.
OFFLINE = "RTP_LLM_DEV_OFFLINE"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rtp-llm"


class StepError(Exception):
    """A step that did not work: what failed, and what to do about it."""

    def __init__(self, what: str, remedy: str = "", exit_code: int = 1) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy
        self.exit_code = exit_code


def say(text: str) -> None:
    bold, plain = ("\033[1m", "\033[0m") if sys.stderr.isatty() else ("", "")
    print(f"{bold}==>{plain} {text}", file=sys.stderr, flush=True)


def run(
    command: Sequence[str],
    *,
    remedy: str,
    env: Mapping[str, str] | None = None,
    shown: bool = True,
) -> None:
    """Runs a command in the root of the repository; StepError when it fails."""
    if exit_code(command, env=env, shown=shown) != 0:
        raise StepError(f"{shlex.join(command)} failed", remedy)


def exit_code(
    command: Sequence[str], *, env: Mapping[str, str] | None = None, shown: bool = True
) -> int:
    """Like run, but hands the exit code back."""
    if shown:
        say(shlex.join(command))
    environment = {**os.environ, **(env or {})}
    return subprocess.run(command, cwd=ROOT, env=environment).returncode


def output_of(command: Sequence[str], *, remedy: str) -> str:
    """Standard output of a quiet command; StepError with its messages when it fails."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise StepError(f"{shlex.join(command)} failed:\n{done.stderr.strip()}", remedy)
    return done.stdout.strip()


def write_if_changed(path: Path, text: str) -> bool:
    """True when the file was written: its time stamp stays when its text does."""
    if path.exists() and path.read_text() == text:
        return False
    path.write_text(text)
    return True
