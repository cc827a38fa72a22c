# SPDX-License-Identifier: Apache-2.0
"""Errors and parsers shared by the commands."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

from rtp_llm.config.command_line import LoadedSettings, load_settings
from rtp_llm.config.options import SettingsError


class CommandError(RuntimeError):
    """The command failed; the message says why, and the exit code is 1."""


class Parser(argparse.ArgumentParser):
    """The argument parser of one command. Errors are one line."""

    def __init__(self, prog: str, about: str, **others: object) -> None:
        super().__init__(prog=prog, description=about, allow_abbrev=False, **others)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with code 2."""
        self.exit(2, f"{self.prog}: error: {message}\n")


def load_model_settings(words: Sequence[str], parser: argparse.ArgumentParser) -> LoadedSettings:
    """Settings from ``words`` and the environment; raises SettingsError without a model."""
    loaded = load_settings(words, parser=parser)
    if not loaded.settings.model:
        raise SettingsError("MODEL: give the folder of a model")
    return loaded
