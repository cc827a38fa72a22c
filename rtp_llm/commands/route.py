# SPDX-License-Identifier: Apache-2.0
"""`rtp-llm route`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rtp_llm.commands.command import CommandError
from rtp_llm.config.command_line import build_parser, load_settings
from rtp_llm.config.roles import OF_ROUTER


def parser() -> argparse.ArgumentParser:
    """Flags: the settings that a router reads."""
    return build_parser("rtp-llm route", "One address before several servers.", OF_ROUTER)


def main(words: Sequence[str]) -> int:
    """Route requests until a signal."""
    loaded = load_settings(words, parser=parser())
    from rtp_llm.router.run import route
    from rtp_llm.server.http.start_error import StartError

    try:
        return route(loaded.settings)
    except StartError as error:
        raise CommandError(str(error)) from error
