"""`rtp-llm chat`: a conversation in the terminal."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rtp_llm.client.sampling import add_sampling_flags, sampling_of
from rtp_llm.commands.command import CommandError
from rtp_llm.commands.model_flags import model_parser
from rtp_llm.config.command_line import read_settings, setting_flags


def parser() -> argparse.ArgumentParser:
    """A folder or URL, and sampling."""
    made = model_parser(
        "rtp-llm chat",
        "Talk to a model. With FOLDER it is loaded for this conversation; with URL any server with "
        "OpenAI's API answers; with neither `rtp-llm serve` on this machine.",
        serves=True,
    )
    add_target(made)
    made.add_argument("--system", metavar="TEXT", help="System prompt.")
    add_sampling_flags(made)
    return made


def add_target(made: argparse.ArgumentParser) -> None:
    """FOLDER or URL, and what a server wants to know."""
    text = "Model folder, or the address of a server (http://HOST:PORT)."
    made.add_argument("where", metavar="FOLDER|URL", nargs="?", help=text)
    made.add_argument("--model", metavar="NAME", help="Of the server's models [its first one].")
    text = "Of the server at URL [RTP_LLM_API_KEY or OPENAI_API_KEY of the environment]."
    made.add_argument("--api-key", metavar="KEY", help=text)


def main(words: Sequence[str]) -> int:
    """Converse until the end of the input."""
    arguments = parser().parse_args(words)
    read_settings(arguments)  # raises for one that is not right
    from rtp_llm.chat.conversation import Conversation
    from rtp_llm.chat.repl import converse
    from rtp_llm.chat.server_child import StartFailed
    from rtp_llm.chat.target import NoTarget, open_target

    flags = setting_flags(arguments)
    try:
        with open_target(arguments.where, arguments.model, arguments.api_key, flags) as target:
            return converse(target, Conversation(arguments.system, sampling_of(arguments)))
    except (NoTarget, StartFailed) as error:
        raise CommandError(str(error)) from error
