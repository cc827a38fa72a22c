# SPDX-License-Identifier: Apache-2.0
"""`rtp-llm serve`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rtp_llm.commands.command import CommandError, load_model_settings
from rtp_llm.config.command_line import build_parser


def parser() -> argparse.ArgumentParser:
    """Build the argument parser: one flag for each setting."""
    return build_parser("rtp-llm serve")


def main(words: Sequence[str]) -> int:
    """Serve a model until a signal."""
    loaded = load_model_settings(words, parser())
    from rtp_llm.server.http.start_error import StartError
    from rtp_llm.server.run import serve

    try:
        if loaded.settings.cluster:
            from rtp_llm.cluster.run import serve_on_ray

            return serve_on_ray(loaded.settings)
        return serve(loaded)
    except StartError as error:
        raise CommandError(str(error)) from error
