# SPDX-License-Identifier: Apache-2.0
"""One answer on standard output."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import Any

from rtp_llm.chat.printing import Answer, AnswerPrinter, print_answer
from rtp_llm.chat.target import Target
from rtp_llm.client.openai import ServerError


def complete(target: Target, path: str, body: Mapping[str, Any]) -> int:
    """Print the answer to a request; returns the exit code. Reasoning goes to standard error.

    Raises:
        BrokenPipeError: standard output was closed.
    """
    printer, answer = AnswerPrinter(sys.stdout, sys.stderr), Answer()
    request = {**body, "model": target.model}
    try:
        asyncio.run(print_answer(target.client(), path, request, printer, answer))
    except BrokenPipeError:
        raise
    except (ServerError, OSError) as error:
        print(f"rtp-llm run: error: {error}", file=sys.stderr)
        return 1
    if answer.finish_reason == "length" and sys.stderr.isatty():
        print("(The answer ended at its longest length.)", file=sys.stderr)
    return 0
