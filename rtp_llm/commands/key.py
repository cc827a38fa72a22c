# SPDX-License-Identifier: Apache-2.0
"""`rtp-llm key`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rtp_llm.commands.command import Parser


def parser() -> argparse.ArgumentParser:
    """Arguments: the name of the key."""
    made = Parser(
        "rtp-llm key",
        "Make an API key. Prints it for its user, and the entry for the file of --api-key-file, "
        "which holds only the key's digest.",
        epilog="For example: rtp-llm key team-a >> keys.toml (docs/keys.md). Quotas and other "
        "rules of a key are lines that you add to its entry.",
    )
    made.add_argument(
        "name",
        metavar="NAME",
        help="Of the key, in logs and metrics: up to 64 letters, digits, dots, dashes and "
        "underscores.",
    )
    return made


def main(words: Sequence[str]) -> int:
    """Print a new key and its entry for the key file."""
    from rtp_llm.server.keys.key_file import new_key

    key, entry = new_key(parser().parse_args(words).name)
    print(f"# For its user; nobody can read it out of the entry:\n# {key}\n\n{entry}", end="")
    return 0
