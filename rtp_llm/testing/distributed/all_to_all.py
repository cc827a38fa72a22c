# SPDX-License-Identifier: Apache-2.0
"""Dispatch and combine among ranks on any device, compared with what one rank computes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rtp_llm.device import Device, resolve_device
from rtp_llm.distributed.dispatch import AllToAll, LowLatencyAllToAll, NormalAllToAll
from rtp_llm.distributed.rows import TokenRows
from rtp_llm.distributed.symmetric_dispatch import (
    SymmetricAllToAll,
    SymmetricDispatch,
    TokenLayout,
)
from rtp_llm.distributed.world import World

HIDDEN, EXPERTS = 24, 12
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
# For each number of ranks: tokens of each rank, choices of a token, type of the activations.
CASES: dict[int, list[Any]] = {
    2: [
        ((5, 7), 3, torch.float32),
        ((1, 8), 2, torch.float32),
        ((4, 0), 2, torch.float32),
        ((0, 0), 2, torch.float32),
        ((33, 2), 1, torch.bfloat16),
        ((0, 3), 1, torch.float32),
    ],
    4: [
        ((5, 0, 1, 9), 4, torch.float32),
        ((3, 3, 0, 2), 2, torch.float32),
        ((6, 1, 2, 0), 8, torch.bfloat16),
    ],
}


def _experts(dtype: torch.dtype, device: Any) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    matrices = torch.randn(EXPERTS, HIDDEN, HIDDEN, generator=generator)
    return matrices.mul(HIDDEN**-0.5).to(device, dtype)


def compute(rows: TokenRows, experts: Tensor) -> Tensor:
    """Weighted sum of the chosen experts' tanh(E x); ids of -1 give nothing."""
    out = torch.zeros(len(rows.x), HIDDEN, device=rows.x.device)
    for expert in range(len(experts)):
        results = torch.tanh(rows.x @ experts[expert].t()).float()
        shares = torch.where(rows.ids == expert, rows.weights, 0.0)
        out += shares.sum(1, keepdim=True) * results
    return out.to(rows.x.dtype)


def tokens_of(
    rank: int, count: int, k: int, dtype: torch.dtype, seed: int, device: Any = "cpu"
) -> TokenRows:
    """Tokens of a rank and what they choose."""
    generator = torch.Generator().manual_seed(100 * seed + rank)
    ids = torch.rand(count, EXPERTS, generator=generator).argsort(1)[:, :k].to(torch.int32)
    if seed % 3 == 1:
        ids %= 2  # all of them on the first rank
    if seed % 3 == 2 and count:
        ids[0, 0] = -1
    x = torch.randn(count, HIDDEN, generator=generator).to(dtype)
    weights = torch.rand(count, k, generator=generator)
    return TokenRows(x.to(device), ids.to(device), weights.to(device))


def worst_errors(
    world: World, cases: list[Any], device: str = "cpu"
) -> list[tuple[float, torch.dtype]]:
    """(error, type) of all modes that there are, against all experts in one place."""
    slots = EXPERTS // world.size
    first = world.rank * slots
    worst = []
    for seed, (counts, k, dtype) in enumerate(cases):
        rows = tokens_of(world.rank, counts[world.rank], k, dtype, seed, device)
        experts = _experts(dtype, device)
        expected = compute(rows, experts)
        capacities = max(1, *counts), max(counts) + 3
        modes: list[AllToAll] = [NormalAllToAll(world.tensors, world.host, slots)]
        modes += [LowLatencyAllToAll(world.tensors, slots, capacity) for capacity in capacities]
        layout = TokenLayout(HIDDEN, dtype, k)
        direct = SymmetricDispatch.connect(world.tensors, resolve_device(device), layout, 64)
        if direct is not None:
            modes += [
                SymmetricAllToAll(world.tensors, slots, capacity, direct.memory)
                for capacity in capacities
            ]
        for mode in modes:
            there, sent = mode.dispatch(rows)
            assert ((there.ids >= -1) & (there.ids < slots)).all()
            results = compute(there, experts[first : first + slots])
            if not isinstance(mode, NormalAllToAll):
                # What a rank computes for rows that hold no token must not matter.
                results[(there.ids < 0).all(1)] = float("nan")
            found = mode.combine(results, sent)
            assert found.dtype is dtype and found.shape == expected.shape
            error = 0.0
            if len(found):
                difference = (found.float() - expected.float()).abs().max()
                error = float(difference / expected.abs().max())
            worst.append((error, dtype))
    return worst


def _direct(world: World, device: Device, rows: int, k: int) -> SymmetricAllToAll:
    layout = TokenLayout(HIDDEN, torch.float32, k)
    direct = SymmetricDispatch.connect(world.tensors, device, layout, rows)
    assert direct is not None, "no peer memory"
    return SymmetricAllToAll(world.tensors, EXPERTS // world.size, rows, direct.memory)


def captured_errors(world: World, rows: int, device_name: str, is_direct: bool) -> float:
    """Worst errors of a captured all-to-all of `rows` rows, replayed on other tokens each time.

    `is_direct`: by kernels over peer memory.
    """
    device = resolve_device(device_name)
    place = device.torch_device
    slots, k = EXPERTS // world.size, 3
    experts = _experts(torch.float32, place)
    mine = experts[world.rank * slots : (world.rank + 1) * slots]
    inputs = tokens_of(world.rank, rows, k, torch.float32, 0, place)
    mode: AllToAll = LowLatencyAllToAll(world.tensors, slots, rows)
    if is_direct:
        mode = _direct(world, device, rows, k)

    def step() -> Tensor:
        there, sent = mode.dispatch(inputs)
        return mode.combine(compute(there, mine), sent)

    stream = device.new_stream()
    stream.wait_stream(device.current_stream())
    with device.use_stream(stream):
        step()
    device.synchronize()
    graph = device.new_graph()
    with graph.capture(stream):
        found = step()
    errors = []
    for seed in range(3, 30, 3):
        # Fewer tokens of some ranks than there are rows: the others choose nothing.
        tokens = tokens_of(world.rank, rows, k, torch.float32, seed, place)
        tokens.ids[max(0, rows - seed * world.rank) :] = -1
        for target, source in zip(vars(inputs).values(), vars(tokens).values(), strict=True):
            target.copy_(source)
        graph.replay()
        errors.append(float((found - compute(tokens, experts)).abs().max()))
    device.synchronize()
    del graph, found  # before the communicator ends
    return max(errors)
