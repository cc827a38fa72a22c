# SPDX-License-Identifier: Apache-2.0
"""Runs a function in several processes that are ranks, each with a device of its own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any

from rtp_llm.distributed.membership import Membership


def together(size: int, work: Callable[..., Any], *inputs: Any) -> list[Any]:
    """``work(membership, *inputs)`` on every rank; what each returned, by rank.

    `work` is a function of a module; one rank alone has no membership. Ends the program when a rank
    fails.
    """
    context = get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        place = str(Path(folder) / "meet")
        ends = [context.Pipe(duplex=False) for _ in range(size)]
        children = []
        for rank, (_, sender) in enumerate(ends):
            membership = Membership(rank, size, place) if size > 1 else None
            child = context.Process(target=_begin, args=(sender, membership, work, inputs))
            child.start()
            sender.close()
            children.append(child)
        try:
            return _answers([receiver for receiver, _ in ends])
        finally:
            for child in children:
                child.kill()
                child.join()


def _answers(receivers: list[Any]) -> list[Any]:
    """Return results in rank order; if a rank ends without one, all ranks are ended."""
    answers: dict[int, Any] = {}
    while len(answers) < len(receivers):
        for ready in connection.wait([r for n, r in enumerate(receivers) if n not in answers]):
            rank = receivers.index(ready)
            try:
                answers[rank] = receivers[rank].recv()
            except EOFError:
                raise SystemExit(f"rank {rank} failed; what it said is above") from None
    return [answers[rank] for rank in range(len(receivers))]


def _begin(sender: Any, membership: Membership | None, work: Any, inputs: Any) -> None:
    if membership is not None:
        os.environ.update(membership.environment())
    sender.send(work(membership, *inputs))
    sender.close()
    os._exit(0)  # without a word about communicators and graphs, which end with the process
