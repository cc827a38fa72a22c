# SPDX-License-Identifier: Apache-2.0
"""`rtp-llm chat`: a conversation in the terminal."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rtp_llm.client.sampling import sampling_of
from rtp_llm.commands.target import target_parser, with_target


def parser() -> argparse.ArgumentParser:
    """Arguments: a folder or URL, and sampling flags."""
    return target_parser(
        "rtp-llm chat",
        "Talk to a model. With FOLDER it is loaded for this conversation; with URL any server with "
        "OpenAI's API answers; with neither `rtp-llm serve` on this machine.",
        "?",
    )


def main(words: Sequence[str]) -> int:
    """Run a conversation until the end of the input."""
    arguments = parser().parse_args(words)
    from rtp_llm.chat.conversation import Conversation
    from rtp_llm.chat.repl import converse

    conversation = Conversation(arguments.system, sampling_of(arguments))
    return with_target(arguments, lambda target: converse(target, conversation))
