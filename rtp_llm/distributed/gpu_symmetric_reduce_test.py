"""Sums by our own kernel between GPUs, each with its process; skipped with fewer than two."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch

from rtp_llm import ops
from rtp_llm.device import resolve_device
from rtp_llm.distributed.symmetric_reduce import SymmetricReduce
from rtp_llm.distributed.tensor_parallel import TensorParallel
from rtp_llm.ops.collective.all_reduce_reference import add_rms_norm_of_parts, sum_of_parts
from rtp_llm.testing.ranks import run_ranks
from rtp_llm.testing.usable_gpu import usable_gpus

GPU, COUNT = usable_gpus()
# Nothing here may begin to use a GPU: ranks are forks of a process that has imported this file.
on_gpus = pytest.mark.parametrize(
    "size",
    [
        pytest.param(
            size,
            marks=pytest.mark.skipif(
                GPU != "cuda" or size > COUNT, reason=f"{COUNT} GPUs of {GPU or 'no kind'}"
            ),
        )
        for size in (2, 4, 8)
    ],
)
SHAPES = [(1, 8), (1, 4096), (3, 40), (7, 8192), (64, 4096), (130, 136), (300, 1000)]
EPS = 1e-6


def _inputs(size, shape, dtype, seed):
    """The same on all ranks: the parts of each, a residual and a weight."""
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(shape, generator=generator).to(dtype) for _ in range(size + 1)]
    weight = torch.randn(shape[1], generator=generator).to(dtype)
    return [each.to(GPU) for each in made[:size]], made[size].to(GPU), weight.to(GPU)


def _connected(world, limit=4 << 20):
    return SymmetricReduce.connect(world.tensors, resolve_device(GPU), limit)


def _bits(tensor):
    return tensor.view(torch.int32 if tensor.dtype == torch.float32 else torch.int16).cpu().tolist()


def _checked(world):
    """What has to be equal on all ranks."""
    direct, results = _connected(world), []
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for seed, shape in enumerate(SHAPES):
            parts, residual, weight = _inputs(world.size, shape, dtype, seed)
            x = parts[world.rank].clone()
            assert direct.takes(x)
            direct.all_reduce(x)
            assert torch.equal(x, sum_of_parts(parts).to(dtype)), (dtype, shape)
            normed, total = add_rms_norm_of_parts(parts, residual, weight, EPS, 1.0)
            x = parts[world.rank].clone()
            direct.all_reduce_add_rms_norm(x, residual, weight, EPS, 1.0)
            assert torch.equal(residual, total), (dtype, shape)
            torch.testing.assert_close(x, normed, rtol=2e-2, atol=1e-2)
            results.append(_bits(x))
    return results


@on_gpus
def test_ranks_have_the_sum_and_the_same_bits(tmp_path, size):
    first, *others = run_ranks(tmp_path, size, _checked, device=GPU)
    assert isinstance(first, list), first
    assert all(other == first for other in others)


def _replayed(world, replays):
    """Sums of counted inputs in a graph; how many numbers were wrong."""
    direct, shape, per_graph = _connected(world), (4, 2048), 6
    device = resolve_device(GPU)
    x = torch.zeros(shape, dtype=torch.bfloat16, device=GPU)
    residual, weight = torch.zeros_like(x), torch.ones(shape[1]).to(x)
    step = torch.zeros((), dtype=torch.int64, device=GPU)
    wrong = torch.zeros((), dtype=torch.int64, device=GPU)
    ranks = TensorParallel(world.rank, world.size, world.tensors, direct)
    # 1 + ... + size, and the step for each; whole numbers below 256 are exact.
    constant = world.size * (world.size + 1) // 2

    def work():
        for call in range(per_graph):
            step.add_(1)
            x.fill_(world.rank + 1).add_(step % 13)
            expected = constant + world.size * (step % 13)
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


@on_gpus
def test_100_000_sums_in_replays_of_a_graph(tmp_path, size):
    assert run_ranks(tmp_path, size, _replayed, 100_000, device=GPU) == [0] * size


def _left_alone(world):
    """Rank 0 waits for a rank that is gone, until its host ends that."""
    direct, device = _connected(world), resolve_device(GPU)
    x = torch.ones(8, 4096, device=GPU)
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


@on_gpus
def test_a_rank_that_is_killed_ends_the_wait_of_the_others(tmp_path, size):
    answer = run_ranks(tmp_path, size, _left_alone, device=GPU, timeout=20.0)[0]
    # What the rank answers comes before it looks for the others, which are gone.
    waited, seconds = answer
    assert waited and seconds < 2.0


def _planned_limits(world):
    """Above its limit a sum goes to the group."""
    direct = _connected(world, 64 << 10)
    ranks = TensorParallel(world.rank, world.size, world.tensors, direct)
    before = ops.kernel_calls("all_reduce")
    small = ranks.all_reduce(torch.ones(8, 4096, device=GPU).bfloat16())
    large = ranks.all_reduce(torch.ones(9, 4096, device=GPU).bfloat16())
    assert (small == world.size).all() and (large == world.size).all()
    return ops.kernel_calls("all_reduce") - before


@on_gpus
def test_larger_sums_are_the_groups(tmp_path, size):
    assert run_ranks(tmp_path, size, _planned_limits, device=GPU) == [1] * size
