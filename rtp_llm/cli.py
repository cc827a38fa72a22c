# SPDX-License-Identifier: Apache-2.0
"""The command `rtp-llm`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from rtp_llm import __version__
from rtp_llm.commands.command import CommandError
from rtp_llm.commands.table import COMMANDS
from rtp_llm.config.options import SettingsError
from rtp_llm.interrupts import end_when_interrupted

_COLUMN = 2 + max(len(call) for call, _ in COMMANDS.values())


def usage() -> str:
    """The usage text of the command itself."""
    rows = [*COMMANDS.values(), ("--version", "print the version")]
    rows.append(("--help", "print this; `rtp-llm COMMAND --help` lists its flags"))
    lines = "".join(f"  {call:{_COLUMN}}{about}\n" for call, about in rows)
    return f"usage: rtp-llm COMMAND ...\n\n{lines}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code (2: bad usage, 1: it failed, 130: Ctrl-C)."""
    words = list(sys.argv[1:] if argv is None else argv)
    command = words[0] if words else ""
    if command in ("--version", "-V", "version"):
        print(f"rtp-llm {__version__}")
        return 0
    if command in ("--help", "-h", "help"):
        print(usage(), end="")
        return 0
    if command not in COMMANDS:
        problem = f"no command {command!r}" if command else "a command is needed"
        print(f"rtp-llm: {problem}\n\n{usage()}", end="", file=sys.stderr)
        return 2
    with end_when_interrupted(f"rtp-llm {command}"):
        return _run(command, words[1:])


def _run(command: str, words: list[str]) -> int:
    try:
        return int(importlib.import_module(f"rtp_llm.commands.{command}").main(words))
    except (SettingsError, CommandError) as error:
        print(f"rtp-llm {command}: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, SettingsError) else 1


if __name__ == "__main__":
    sys.exit(main())
