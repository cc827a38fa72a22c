# SPDX-License-Identifier: Apache-2.0
"""What each rank does in tests of exchanges between GPUs.

Ranks are forks of a process that has imported this: nothing here may begin to use a GPU.
"""

from __future__ import annotations

import os
import signal
import time

import torch

from rtp_llm import ops
from rtp_llm.device import Device, resolve_device
from rtp_llm.distributed.dispatch_modes import DispatchModes
from rtp_llm.distributed.rows import TokenRows
from rtp_llm.distributed.symmetric_dispatch import SymmetricDispatch, TokenLayout
from rtp_llm.distributed.world import World
from rtp_llm.testing.distributed.all_to_all import tokens_of

HIDDEN, K, SLOTS = 2048, 4, 8
FORM = TokenLayout(HIDDEN, torch.bfloat16, K)


def _device(world: World) -> Device:
    return resolve_device(world.place.type)


def _connected(world: World, step_tokens: int) -> DispatchModes:
    direct = SymmetricDispatch.connect(world.tensors, _device(world), FORM, step_tokens)
    assert direct is not None, "no peer memory"
    return DispatchModes(world, SLOTS, 64, direct)


def replayed(world: World, replays: int) -> int:
    """Tokens that say whose they are go to counted experts in a graph; how many sums were wrong."""
    rows, per_graph, device, place = 4, 5, _device(world), world.place
    modes = _connected(world, rows)
    modes.fix(rows, alone=False)
    step = torch.zeros((), dtype=torch.int64, device=place)
    wrong = torch.zeros((), dtype=torch.int64, device=place)
    x = torch.zeros(rows, HIDDEN, dtype=torch.bfloat16, device=place)
    first = torch.arange(rows, device=place)[:, None] + torch.arange(K, device=place) * SLOTS
    weights = torch.ones(rows, K, device=place)

    def work() -> None:
        for _ in range(per_graph):
            step.add_(1)
            x.fill_(world.rank + 1).add_(step % 13)  # whole numbers below 256 are exact
            ids = ((first + step * 3) % (2 * SLOTS * world.size)).int()  # half of them do not exist
            there, sent = modes.current.dispatch(TokenRows(x, ids, weights))
            here = (there.ids >= 0).sum(1, keepdim=True).to(x.dtype)
            found = modes.current.combine(there.x * here, sent)
            real = (ids < SLOTS * world.size).sum(1, keepdim=True)
            wrong.add_((found != x * real.to(x.dtype)).sum())

    work()
    device.synchronize()
    world.host.wait_for_all()
    graph = device.new_graph()
    with graph.capture():
        work()
    for turn in range(replays // per_graph):
        graph.replay()
        if turn % 1000 == 0:
            device.synchronize()
    device.synchronize()
    return int(wrong.item())


def steps(world: World) -> list[list[int]]:
    """Kernels' calls in steps of few and of many tokens, and in a trial."""
    modes = _connected(world, 128)
    calls = []
    for tokens in (None, 128, 129, 64):
        if tokens is not None:
            modes.begin(tokens)
        rows = tokens_of(world.rank, 2, K, torch.bfloat16, 0, world.place.type)
        rows = TokenRows(rows.x.repeat(1, 128)[:, :HIDDEN].contiguous(), rows.ids, rows.weights)
        before = ops.kernel_calls("dispatch_tokens"), ops.kernel_calls("combine_tokens")
        there, sent = modes.current.dispatch(rows)
        modes.current.combine(there.x, sent)
        after = ops.kernel_calls("dispatch_tokens"), ops.kernel_calls("combine_tokens")
        calls.append([now - then for now, then in zip(after, before, strict=True)])
    return calls


def left_alone(world: World) -> tuple[bool, float]:
    """Rank 0 waits for a rank that is gone, until its host ends that."""
    modes, device, place = _connected(world, 8), _device(world), world.place
    modes.begin(8)
    x = torch.ones(8, HIDDEN, dtype=torch.bfloat16, device=place)
    ids = torch.arange(K, dtype=torch.int32, device=place).expand(8, K) * SLOTS
    rows = TokenRows(x, ids.contiguous(), torch.ones(8, K, device=place))
    there, sent = modes.current.dispatch(rows)
    modes.current.combine(there.x, sent)
    device.synchronize()
    world.host.wait_for_all()
    if world.rank:
        os.kill(os.getpid(), signal.SIGKILL)
    there, sent = modes.current.dispatch(rows)
    modes.current.combine(there.x, sent)
    done = device.new_event()
    done.record()
    time.sleep(1.0)
    waited = not done.query()
    modes.abort()
    began = time.monotonic()
    device.synchronize()
    return waited, time.monotonic() - began
