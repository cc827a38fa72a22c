# SPDX-License-Identifier: Apache-2.0
"""What the commands share: errors and parsers."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

from rtp_llm.config.command_line import LoadedSettings, load_settings
from rtp_llm.config.options import SettingsError


class CommandError(RuntimeError):
    """The command cannot do what it was asked for; the message says why, and the exit code is 1."""


class Parser(argparse.ArgumentParser):
    """Flags of one command. Errors are one line."""

    def __init__(self, prog: str, about: str, **others: object) -> None:
        super().__init__(prog=prog, description=about, allow_abbrev=False, **others)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        """Exit with code 2."""
        self.exit(2, f"{self.prog}: error: {message}\n")


def load_model_settings(words: Sequence[str], parser: argparse.ArgumentParser) -> LoadedSettings:
    """The settings that ``words`` and the environment give; SettingsError without a model."""
    loaded = load_settings(words, parser=parser)
    if not loaded.settings.model:
        raise SettingsError("MODEL: give the folder of a model")
    return loaded
