# SPDX-License-Identifier: Apache-2.0
"""Reads questions from the terminal, with line editing and history, or from lines of a pipe."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

_PROMPT, _MORE = ">>> ", "... "
_QUOTES = '"""'
_HISTORY_LINES = 1000


class Questions:
    """Reads input; `next` returns the text of one question, or a command."""

    def __init__(self) -> None:
        self.on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        self._read: Callable[[str], str] = input if self.on_terminal else _read_line
        self._save = _edit_lines() if self.on_terminal else None

    def next(self) -> str:
        """The next input, stripped; raises EOFError at the end, KeyboardInterrupt on Ctrl-C."""
        line = self._read(_PROMPT)
        if line.lstrip().startswith(_QUOTES):
            return self._quoted(line.lstrip().removeprefix(_QUOTES))
        while line.endswith("\\"):
            line = f"{line[:-1]}\n{self._more()}"
        return line.strip()

    def close(self) -> None:
        """Save the history of questions to its file."""
        if self._save is not None:
            self._save()

    def _quoted(self, line: str) -> str:
        """Read lines up to the closing quotes, or the end of the input."""
        lines = []
        while not line.rstrip().endswith(_QUOTES):
            lines.append(line)
            try:
                line = self._read(_MORE)
            except EOFError:
                return "\n".join(lines).strip()
        return "\n".join([*lines, line.rstrip().removesuffix(_QUOTES)]).strip()

    def _more(self) -> str:
        try:
            return self._read(_MORE)
        except EOFError:
            return ""


def _read_line(_prompt: str) -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\n")


def _edit_lines() -> Callable[[], None] | None:
    """Enable line editing for `input`; returns how to save the history, None without readline."""
    try:
        import readline
    except ImportError:
        return None
    file = _history_file()
    with contextlib.suppress(OSError):
        readline.read_history_file(file)
    readline.set_history_length(_HISTORY_LINES)

    def save() -> None:
        with contextlib.suppress(OSError):  # optional
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch(mode=0o600)
            readline.write_history_file(file)

    return save


def _history_file() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "rtp-llm" / "chat_history"
