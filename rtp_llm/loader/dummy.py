# SPDX-License-Identifier: Apache-2.0
"""Random dummy weights: benchmarks need a model's shape, not its checkpoint."""

from __future__ import annotations

import math
import zlib

import torch
from torch import Tensor, nn

from rtp_llm.layers import (
    NotLocal,
    ShardTarget,
    TakesRowsTogether,
    WeightTarget,
    local_target,
    rows_together,
    weight_targets,
)
from rtp_llm.layers.weights.mxfp4 import BLOCKS, SCALES
from rtp_llm.loader.progress import Progress

_DEVIATION = 0.02  # standard deviation of matrices, as in initialisation: hidden states stay finite
_MXFP4_SCALE = 127 - 7  # the numbers of all codes, times 2^-7, have about that deviation
_CHUNK_NUMBERS = 2**24  # weights that must be converted pass through host memory in chunks


def draw_weights(model: nn.Module, progress: Progress) -> None:
    """Fill every parameter of `model`: matrices normal, norms 1, biases 0.

    The numbers are generated on the weights' device, and are reproducible on one kind of device.
    Tensor-parallel ranks get the same numbers for replicated weights, whatever else a rank holds.
    """
    found = [pair for pair in weight_targets(model) if not isinstance(pair[1], NotLocal)]
    divided = any(isinstance(target, ShardTarget) for _, target in found)
    targets = [(name, _seed(name, target), local_target(target)) for name, target in found]
    progress.start(sum(math.prod(target.shape) for *_, target in targets))
    generators: dict[torch.device, torch.Generator] = {}
    for name, seed, target in targets:
        memory = target.destination(0, target.shape[0])
        place = _place(target, memory)
        if place not in generators:
            generators[place] = torch.Generator(place).manual_seed(0)
        if divided:
            generators[place].manual_seed(seed)
        if memory is None:
            _convert(target, name, generators[place])
        else:
            _fill(memory, name, generators[place])
        progress.advance(math.prod(target.shape))
    progress.finish()


def _seed(name: str, target: WeightTarget) -> int:
    """The seed for this rank's part of the tensor `name`."""
    part = (target.rows, target.columns) if isinstance(target, ShardTarget) else ()
    return zlib.crc32(f"{name} {part}".encode())


def _place(target: WeightTarget, memory: Tensor | None) -> torch.device:
    """The device on which the numbers are generated."""
    if memory is not None:
        return memory.device
    return target.device if isinstance(target, TakesRowsTogether) else torch.device("cpu")


def _fill(memory: Tensor, name: str, generator: torch.Generator) -> None:
    if name.endswith(SCALES):
        memory.fill_(_MXFP4_SCALE)
    elif memory.dtype is torch.uint8:
        memory.random_(0, 256, generator=generator)
    elif memory.dim() > 1:
        memory.normal_(std=_DEVIATION, generator=generator)
    else:
        memory.fill_(0 if name.endswith("bias") else 1)


def _convert(target: WeightTarget, name: str, generator: torch.Generator) -> None:
    """Fill a target that converts rows, such as a quantised matrix, chunk by chunk."""
    rows, *rest = target.shape
    together = rows_together([target])
    step = max(1, _CHUNK_NUMBERS // math.prod(rest) // together) * together
    for start in range(0, rows, step):
        dtype = torch.uint8 if name.endswith((BLOCKS, SCALES)) else torch.float32
        shape = (min(step, rows - start), *rest)
        chunk = torch.empty(shape, dtype=dtype, device=generator.device)
        _fill(chunk, name, generator)
        target.write(start, chunk)
