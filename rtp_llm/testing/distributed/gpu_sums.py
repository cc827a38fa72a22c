# SPDX-License-Identifier: Apache-2.0
"""What each rank does in tests of sums between GPUs.

Ranks are forks of a process that has imported this: nothing here may begin to use a GPU.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from typing import Any

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.device import Device, resolve_device
from rtp_llm.distributed.symmetric_reduce import SymmetricReduce
from rtp_llm.distributed.tensor_parallel import TensorParallel
from rtp_llm.distributed.world import World
from rtp_llm.ops.collective.all_reduce_reference import add_rms_norm_of_parts, sum_of_parts
from rtp_llm.ops.fp8.fp8_blocks import BLOCK
from rtp_llm.ops.norm.norm_reference import rms_norm_reference
from rtp_llm.testing.fp8_rows import assert_quantized

SHAPES = [(1, 8), (1, 4096), (3, 40), (7, 8192), (64, 4096), (130, 136), (300, 1000), (1100, 8192)]
EPS = 1e-6


def _inputs(
    world: World, shape: tuple[int, int], dtype: torch.dtype, seed: int
) -> tuple[list[Tensor], Tensor, Tensor]:
    """The same on all ranks: the parts of each, a residual and a weight."""
    size, place = world.size, world.place
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(shape, generator=generator).to(dtype) for _ in range(size + 1)]
    weight = torch.randn(shape[1], generator=generator).to(dtype)
    return [each.to(place) for each in made[:size]], made[size].to(place), weight.to(place)


def _device(world: World) -> Device:
    return resolve_device(world.place.type)


def _connected(world: World, limit: int = 128 << 20) -> SymmetricReduce:
    return SymmetricReduce.connect(world.tensors, _device(world), limit)


def _bits(tensor: Tensor) -> str:
    """What differs where a bit does."""
    return hashlib.sha256(tensor.cpu().view(torch.uint8).numpy().tobytes()).hexdigest()


def checked(world: World) -> list[Any]:
    """What has to be equal on all ranks."""
    direct, results = _connected(world), list[Any]()
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for seed, shape in enumerate(SHAPES):
            parts, residual, weight = _inputs(world, shape, dtype, seed)
            x = parts[world.rank].clone()
            assert direct.takes(x)
            direct.all_reduce(x)
            assert torch.equal(x, sum_of_parts(parts).to(dtype)), (dtype, shape)
            normed, total = add_rms_norm_of_parts(parts, residual, weight, EPS, 1.0)
            if shape[1] % BLOCK == 0 and direct.takes_at_once(x):
                q, scales = direct.all_reduce_add_rms_norm_fp8(
                    parts[world.rank], residual.clone(), weight, EPS, 1.0
                )
                assert_quantized(q, scales, rms_norm_reference(total.float(), weight, EPS, 1.0))
                results += [_bits(q), _bits(scales)]
            x = parts[world.rank].clone()
            direct.all_reduce_add_rms_norm(x, residual, weight, EPS, 1.0)
            assert torch.equal(residual, total), (dtype, shape)
            torch.testing.assert_close(x, normed, rtol=2e-2, atol=1e-2)
            results.append(_bits(x))
    return results


def _shots(world: World) -> list[TensorParallel]:
    """Ranks whose small sums are made in one shot, and those where they are made in two."""
    direct = _connected(world)
    found = [TensorParallel(world.rank, world.size, world.tensors, direct)]
    if world.size > 2:
        two = SymmetricReduce(direct._memory, 128 << 20, two_shots_from=1)
        found.append(TensorParallel(world.rank, world.size, world.tensors, two))
    return found


def replayed(world: World, replays: int) -> int:
    """Sums of counted inputs in a graph; how many numbers were wrong."""
    shots, shape, per_graph = _shots(world), (4, 2048), 8
    device = _device(world)
    place = world.place
    x = torch.zeros(shape, dtype=torch.bfloat16, device=place)
    residual, weight = torch.zeros_like(x), torch.ones(shape[1]).to(x)
    step = torch.zeros((), dtype=torch.int64, device=place)
    wrong = torch.zeros((), dtype=torch.int64, device=place)
    # 1 + ... + size, and the step for each; whole numbers below 256 are exact.
    constant = world.size * (world.size + 1) // 2

    def work() -> None:
        for call in range(per_graph):
            step.add_(1)
            x.fill_(world.rank + 1).add_(step % 13)
            expected = constant + world.size * (step % 13)
            ranks = shots[call // 2 % len(shots)]
            if call % 2:
                total = ranks.all_reduce(x)
            else:
                residual.zero_()
                ranks.add_rms_norm(x, residual, weight, EPS, 0.0)
                total = residual
            wrong.add_((total != expected).sum())

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


def left_alone(world: World) -> tuple[bool, float]:
    """Rank 0 waits for a rank that is gone, until its host ends that."""
    direct, device = _connected(world), _device(world)
    x = torch.ones(8, 4096, device=world.place)
    direct.all_reduce(x)
    device.synchronize()
    world.host.wait_for_all()
    if world.rank:
        os.kill(os.getpid(), signal.SIGKILL)
    direct.all_reduce(x)
    done = device.new_event()
    done.record()
    time.sleep(1.0)
    waited = not done.query()
    direct.abort()
    began = time.monotonic()
    device.synchronize()
    return waited, time.monotonic() - began


def planned_limits(world: World) -> int:
    """Above its limit a sum goes to the group."""
    direct = _connected(world, 64 << 10)
    ranks = TensorParallel(world.rank, world.size, world.tensors, direct)
    before = ops.kernel_calls("all_reduce")
    small = ranks.all_reduce(torch.ones(8, 4096, device=world.place).bfloat16())
    large = ranks.all_reduce(torch.ones(9, 4096, device=world.place).bfloat16())
    assert (small == world.size).all() and (large == world.size).all()
    return ops.kernel_calls("all_reduce") - before
