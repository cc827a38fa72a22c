# SPDX-License-Identifier: Apache-2.0
"""A private server for one conversation: a child process that ends with it."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence

from rtp_llm.bound_child import bound_command
from rtp_llm.config.command_line import environment_name
from rtp_llm.config.settings import options

_READY = "is ready: "
_QUIET = ["--access-log", "off", "--log-format", "text", "--page", "off"]
_PRIVATE = ["--host", "127.0.0.1", "--port", "0"]
_STOP_SECONDS = 10.0
# Settings of these groups, such as address and keys, are not taken from the environment.
_GROUPS = ("server", "disaggregation")
# Except those about the model.
INHERITED = ("log_level", "tool_call_parser", "reasoning_parser", "start_timeout", "step_timeout")


class StartFailed(Exception):
    """The server exited before it was ready and printed the reason."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the model was not loaded (exit code {code})")


@contextlib.contextmanager
def server_child(folder: str, flags: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Run `rtp-llm serve FOLDER FLAGS` during the block; yields its address and API key.

    Its log goes to standard error, where a terminal shows the loading progress.

    Raises:
        StartFailed: it could not start.
    """
    key = secrets.token_hex(32)
    dropped = {
        environment_name(name)
        for name, info in options().items()
        if name == "served_model_name" or (info.group in _GROUPS and name not in INHERITED)
    }
    environ = {name: value for name, value in os.environ.items() if name not in dropped}
    command = bound_command("serve", folder, *_QUIET, *_PRIVATE, *_log_level(flags), *flags)
    with subprocess.Popen(
        command,
        env={**environ, "RTP_LLM_API_KEY": key},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C should only reach this process
    ) as process:
        try:
            assert process.stdout is not None
            yield _address(process.stdout) or _failed(process), key
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _address(lines: Iterable[str]) -> str:
    with _says("loading the model ..."):
        for line in lines:
            if _READY in line:
                return line.split()[-1]
        return ""


def _failed(process: subprocess.Popen[str]) -> str:
    raise StartFailed(process.wait())


def _log_level(flags: Sequence[str]) -> Sequence[str]:
    requested = "--log-level" in flags or "RTP_LLM_LOG_LEVEL" in os.environ
    return () if requested else ("--log-level", "warning")


@contextlib.contextmanager
def _says(words: str) -> Iterator[None]:
    """Show a message on a terminal during the block, until the child's progress bar replaces it."""
    shown = sys.stderr.isatty()
    if shown:
        print(words, end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
