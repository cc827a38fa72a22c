"""Runs a function in several processes that meet as ranks over gloo."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rtp_llm.device.cpu import CpuDevice
from rtp_llm.distributed.membership import Membership
from rtp_llm.distributed.world import World

_PATIENCE = 240.0  # of the parent for a whole run, in seconds


def run_ranks(
    folder: Path, size: int, work: Callable[..., Any], *inputs: Any, timeout: float = 120.0
) -> list[Any]:
    """``work(world, *inputs)`` on every rank; what each returned, or its error's text, by rank.

    `work` is a function of a module. A rank that ends itself by a signal gives None.
    """
    # Children of a server that has imported torch, once: they begin at once.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed", __name__])
    ends = [context.Pipe(duplex=False) for _ in range(size)]
    children = [
        context.Process(
            target=_child, args=(sender, str(folder / "meet"), rank, size, timeout, work, inputs)
        )
        for rank, (_, sender) in enumerate(ends)
    ]
    for child, (_, sender) in zip(children, ends, strict=True):
        child.start()
        sender.close()
    results = []
    for receiver, _ in ends:
        assert receiver.poll(_PATIENCE), "a rank hangs"
        try:
            results.append(receiver.recv())
        except EOFError:
            results.append(None)
    for child in children:
        child.join(_PATIENCE)
    return results


def _child(
    sender: Any, place: str, rank: int, size: int, timeout: float, work: Any, inputs: Any
) -> None:
    torch.set_num_threads(1)
    membership = Membership(rank, size, place)
    os.environ.update(membership.environment())
    try:
        world = World.connect(membership, CpuDevice(), timeout)
        sender.send(work(world, *inputs))
        world.host.wait_for_all()
        world.close()
    except Exception as error:
        traceback.print_exc()
        sender.send(f"{type(error).__name__}: {error}")
