# SPDX-License-Identifier: Apache-2.0
"""What the turns of all libraries have in common: a tool, a schema, and how they report.

`PYTHON -m ... LIBRARY URL` runs those of one library.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

from pydantic import BaseModel

QUESTION = "What is 123 + 456?"
IN_JSON = "What is 12 + 30? Answer in JSON."
MODEL, KEY = "demo", "a key"
TEXTS = ["a house", "a garden with a house"]  # to embed
LENGTH = 200  # most tokens of an answer


def calculator(expression: str) -> str:
    """Add the numbers of an expression."""
    return str(sum(map(int, expression.split("+"))))


class Sum(BaseModel):
    """A sum and its terms."""

    a: int
    b: int
    sum: int


def main(library: str, url: str) -> None:
    """Print what the library's turns with the server gave, and the hosts it went to, as JSON."""
    hosts: set[str] = set()

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if event == "socket.getaddrinfo":
            hosts.add(str(args[0]))
        elif event == "socket.connect" and isinstance(args[1], tuple):
            hosts.add(str(args[1][0]))

    sys.addaudithook(watch)
    module = importlib.import_module(f"rtp_llm.testing.clients.{library}")
    print(json.dumps({"turns": module.turns(url), "hosts": sorted(hosts)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
