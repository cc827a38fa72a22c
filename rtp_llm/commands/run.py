# SPDX-License-Identifier: Apache-2.0
"""`rtp-llm run`: one prompt, one answer."""

from __future__ import annotations

import argparse
import os
import stat
import sys
from collections.abc import Sequence

from rtp_llm.client.sampling import sampling_of
from rtp_llm.commands.target import target_parser, with_target
from rtp_llm.config.options import SettingsError


def parser() -> argparse.ArgumentParser:
    """Arguments: a folder or URL, the prompt, and sampling flags."""
    made = target_parser(
        "rtp-llm run",
        "Answer one prompt and end. The answer goes to standard output as it is made, all else to "
        "standard error. Exit codes: 0, 1 (no answer), 2 (usage), 130 (Ctrl-C).",
        None,
    )
    text = "What to answer [standard input]; what is piped in follows it."
    made.add_argument("prompt", metavar="PROMPT", nargs="*", default=[], help=text)
    text = "Complete the prompt without the chat template: 16 tokens unless --max-tokens says."
    made.add_argument("--raw", action="store_true", help=text)
    return made


def main(words: Sequence[str]) -> int:
    """Print the answer to one prompt; returns the exit status."""
    arguments = parser().parse_args(words)
    if arguments.raw and arguments.system:
        raise SettingsError("--system: there is no system prompt with --raw; write it out")
    prompt = _prompt(arguments.prompt)
    if not prompt.strip():
        raise SettingsError("PROMPT: give one, or pipe it in")
    from rtp_llm.chat.conversation import Conversation
    from rtp_llm.chat.one_answer import complete
    from rtp_llm.client.openai import CHAT, COMPLETIONS

    body = sampling_of(arguments)
    if arguments.raw:
        path, body["prompt"] = COMPLETIONS, prompt
    else:
        conversation = Conversation(arguments.system)
        conversation.ask(prompt)
        path, body["messages"] = CHAT, conversation.messages()
    return with_target(arguments, lambda target: complete(target, path, body))


def _prompt(words: Sequence[str]) -> str:
    """The words followed by piped standard input; without words, all of standard input."""
    given = " ".join(words)
    if not given:
        return sys.stdin.read()
    piped = sys.stdin.read() if _is_piped() else ""
    return f"{given}\n\n{piped}" if piped.strip() else given


def _is_piped() -> bool:
    """Whether standard input is a pipe or a file: neither a terminal nor /dev/null."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)
