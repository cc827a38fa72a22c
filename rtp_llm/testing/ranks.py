# SPDX-License-Identifier: Apache-2.0
"""Runs a function in several processes that meet as ranks."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rtp_llm.device import resolve_device
from rtp_llm.distributed.membership import Membership
from rtp_llm.distributed.world import World

_TIMEOUT = 240.0  # seconds that the parent waits for a whole run


def run_ranks(
    folder: Path,
    size: int,
    work: Callable[..., Any],
    *inputs: Any,
    timeout: float = 120.0,
    device: str = "cpu",
    connect: bool = True,
) -> list[Any]:
    """Run ``work(world, *inputs)`` on every rank; returns results, or error texts, by rank.

    `work` is a module-level function. A rank that exits by itself gives None. Without `connect`,
    `world` is None and ranks connect by themselves, as engines do.
    """
    # Forked from a server that has already imported torch, so that they start immediately.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed", __name__, work.__module__])
    ends = [context.Pipe(duplex=False) for _ in range(size)]
    place, connection = str(folder / "meet"), (device, timeout) if connect else None
    children = []
    for rank, (_, sender) in enumerate(ends):
        given = (sender, Membership(rank, size, place), connection, work, inputs)
        children.append(context.Process(target=_child, args=given))
    for child, (_, sender) in zip(children, ends, strict=True):
        child.start()
        sender.close()
    results = []
    for receiver, _ in ends:
        assert receiver.poll(_TIMEOUT), "a rank hangs"
        try:
            results.append(receiver.recv())
        except EOFError:
            results.append(None)
    for child in children:
        child.join(_TIMEOUT)
    return results


def _child(
    sender: Any,
    membership: Membership,
    connection: tuple[str, float] | None,
    work: Any,
    inputs: Any,
) -> None:
    torch.set_num_threads(1)
    os.environ.update(membership.environment())
    try:
        if connection is None:
            sender.send(work(None, *inputs))
            return
        name, timeout = connection
        device = resolve_device(name)
        device.make_current()
        world = World.connect(membership, device, timeout)
        sender.send(work(world, *inputs))
        world.host.wait_for_all()
        world.close()
    except Exception as error:
        traceback.print_exc()
        sender.send(f"{type(error).__name__}: {error}")
