# SPDX-License-Identifier: Apache-2.0
"""Arguments shared by `rtp-llm chat` and `rtp-llm run`: the server to talk to."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from rtp_llm.client.sampling import add_sampling_flags
from rtp_llm.commands.command import CommandError
from rtp_llm.commands.model_flags import model_parser
from rtp_llm.config.command_line import read_settings, setting_flags

if TYPE_CHECKING:
    from rtp_llm.chat.target import Target

# The exit code of a program ended by SIGPIPE.
_NOBODY_READS = 141


def target_parser(prog: str, about: str, where: str | None) -> argparse.ArgumentParser:
    """Adds FOLDER or URL (``where``: "?" if it is optional), a system prompt and sampling flags."""
    made = model_parser(prog, about, serves=True)
    text = "Model folder, or the address of a server (http://HOST:PORT)."
    made.add_argument("where", metavar="FOLDER|URL", nargs=where, help=text)
    made.add_argument("--model", metavar="NAME", help="Of the server's models [its first one].")
    text = "Of the server at URL [RTP_LLM_API_KEY or OPENAI_API_KEY of the environment]."
    made.add_argument("--api-key", metavar="KEY", help=text)
    made.add_argument("--system", metavar="TEXT", help="System prompt.")
    add_sampling_flags(made)
    return made


def with_target(arguments: argparse.Namespace, work: Callable[[Target], int]) -> int:
    """Run ``work`` with the target of ``arguments``; returns its exit code, raises CommandError."""
    read_settings(arguments)  # raises if it is invalid
    from rtp_llm.chat.server_child import StartFailed
    from rtp_llm.chat.target import NoTarget, open_target

    flags = setting_flags(arguments)
    try:
        with open_target(arguments.where, arguments.model, arguments.api_key, flags) as target:
            return work(target)
    except (NoTarget, StartFailed) as error:
        raise CommandError(str(error)) from error
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return _NOBODY_READS
