# SPDX-License-Identifier: Apache-2.0
"""Sums over the ranks of several GPUs: NCCL, PyTorch's symmetric memory, and our own kernels.

Microseconds of one sum among many in a captured graph, bfloat16, of the slowest rank. One-shot and
two-shot are PyTorch's over symmetric memory that the tensor lies in already; "with copy" it has to
be brought there. The last columns are of the sum with what follows in a model: added to the
residual, and its norm taken, which becomes block-scaled FP8 in the very last ones. "In one" and "in
two": the shots among which the engine chooses, where ranks are more than two and each has a row. A
row is `--hidden` numbers.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmark.gpu_time import microseconds, the_gpu
from benchmark.rank_processes import together
from benchmark.report import Report, parser
from rtp_llm import ops
from rtp_llm.device import Device
from rtp_llm.distributed.membership import Membership
from rtp_llm.distributed.peer_memory import NoPeerMemoryError, PeerMemory
from rtp_llm.distributed.symmetric_reduce import (
    SymmetricReduce,
    direct_sums,
    limit_of,
    two_shots_from,
)
from rtp_llm.distributed.world import World
from rtp_llm.ops.fp8.fp8_blocks import BLOCK
from rtp_llm.ops.fp8.fp8_norm import MAX_CHANNELS

KIB = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 16384, 65536)
TIMEOUT = 120.0
EPS = 1e-6
COLUMNS = (
    "KiB",
    "rows",
    "NCCL",
    "one-shot",
    "with copy",
    "two-shot",
    "ours",
    "ours, % of best",
    "in one",
    "in two",
    "NCCL + norm",
    "two-shot + norm",
    "ours + norm",
    "in one + norm",
    "in two + norm",
    "ours, then FP8 norm",
    "ours + FP8 norm",
)
OTHERS = ("NCCL", "one-shot", "two-shot")
Works = dict[str, Callable[[], object]]


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--ranks", type=int, help="as many as there are GPUs, if not given")
    flags.add_argument("--hidden", type=int, default=4096)
    flags.add_argument("--kib", type=int, action="append", help="size of the tensor; may repeat")
    flags.add_argument(
        "--rounds", type=int, help="replays of 20 sums, of which the quickest counts"
    )
    arguments = flags.parse_args()
    device = the_gpu()
    size = arguments.ranks or device.device_count()
    if not 2 <= size <= device.device_count():
        raise SystemExit(f"{size} ranks need two GPUs or more, one each; there are "
                         f"{device.device_count()}")  # fmt: skip
    row = 2 * arguments.hidden
    sizes = [kib << 10 for kib in arguments.kib or KIB if (kib << 10) % row == 0]
    if not sizes:
        raise SystemExit(f"no size of whole rows, of {row} bytes each")
    rounds = arguments.rounds or (5 if arguments.quick else 50)
    report = Report(f"all-reduce of {size} ranks, {device.description()}", COLUMNS)
    found = together(size, measure, sizes, arguments.hidden, rounds)
    for number, nbytes in enumerate(sizes):
        of_ranks = [rank[number] for rank in found]
        row = {name: max(each[name] for each in of_ranks) for name in of_ranks[0]}
        if "ours" in row:
            row["ours, % of best"] = 100 * row["ours"] / min(row[name] for name in OTHERS)
        report.add(KiB=nbytes >> 10, rows=nbytes // (2 * arguments.hidden), **row)
    report.notes.append(f"the quickest of {rounds} replays; the engine's limit is "
                        f"{limit_of(device.description(), size) >> 10} KiB")  # fmt: skip
    report.print()
    report.write(arguments.json)


def measure(
    membership: Membership, sizes: list[int], hidden: int, rounds: int
) -> list[dict[str, float]]:
    """Return a rank's microseconds for each size in bytes."""
    device = the_gpu()
    device.make_current()
    world = World.connect(membership, device, TIMEOUT)
    with torch.inference_mode():
        sums = _Sums(world, device, max(sizes), hidden)
        return [sums.times(nbytes, rounds) for nbytes in sizes]


class _Sums:
    """All-reduces of zeros, so that repeated sums do not grow."""

    def __init__(self, world: World, device: Device, max_bytes: int, hidden: int) -> None:
        self._world, self._device, self._hidden = world, device, hidden
        place, count = device.torch_device, max_bytes // 2
        self._plain = torch.zeros(count, dtype=torch.bfloat16, device=place)
        self._residual = torch.zeros_like(self._plain)
        self._norm = (torch.ones(hidden, dtype=torch.bfloat16, device=place), EPS, 0.0)
        symmetric: Any = importlib.import_module("torch.distributed._symmetric_memory")
        self._shared = symmetric.empty(count, dtype=torch.bfloat16, device=place)
        self._shared.zero_()
        self._handle = symmetric.rendezvous(self._shared, world.tensors.name)
        possible = direct_sums(device, world.size)
        try:
            memory = PeerMemory.connect(world.tensors, device, min(max_bytes, 16 << 20), possible)
        except NoPeerMemoryError as error:
            raise SystemExit(f"no sums of our own: {error}") from error
        self._direct = SymmetricReduce(memory, max_bytes, two_shots_from(world.size))
        self._one, self._two = (SymmetricReduce(memory, max_bytes, first) for first in (0, 1))

    def times(self, nbytes: int, rounds: int) -> dict[str, float]:
        rows = nbytes // (2 * self._hidden)
        x, residual, shared = (
            each[: nbytes // 2].view(rows, self._hidden)
            for each in (self._plain, self._residual, self._shared)
        )
        works = {**self._of_others(x, residual, shared), **self._ours(x, residual)}
        return {each: self._time(work, rounds) for each, work in works.items()}

    def _of_others(self, x: Tensor, residual: Tensor, shared: Tensor) -> Works:
        group, name = self._world.tensors, self._world.tensors.name
        library = torch.ops.symm_mem

        def two_shot() -> Tensor:
            library.two_shot_all_reduce_(shared, "sum", name)
            return shared

        def copied() -> None:
            shared.copy_(x)
            library.one_shot_all_reduce(shared, "sum", name)

        def nccl() -> Tensor:
            group.all_reduce(x)
            return x

        def add_norm(summed: Tensor) -> None:
            ops.fused_add_rms_norm(summed, residual, *self._norm)

        return {
            "NCCL": nccl,
            "one-shot": lambda: library.one_shot_all_reduce(shared, "sum", name),
            "with copy": copied,
            "two-shot": two_shot,
            "NCCL + norm": lambda: add_norm(nccl()),
            "two-shot + norm": lambda: add_norm(two_shot()),
        }

    def _ours(self, x: Tensor, residual: Tensor) -> Works:
        direct, norm, works = self._direct, self._norm, dict[str, Callable[[], object]]()

        def ours() -> Tensor:
            direct.all_reduce(x)
            return x

        works["ours"] = ours
        works["ours + norm"] = partial(direct.all_reduce_add_rms_norm, x, residual, *norm)
        if self._two.in_two_shots(x):  # else there is no choice
            for shots, sums in (("in one", self._one), ("in two", self._two)):
                works[shots] = partial(sums.all_reduce, x)
                works[f"{shots} + norm"] = partial(sums.all_reduce_add_rms_norm, x, residual, *norm)
        fits = self._hidden % BLOCK == 0 and self._hidden <= MAX_CHANNELS
        if fits and direct.takes_at_once(x):
            works["ours, then FP8 norm"] = lambda: ops.norm_fp8(residual, ours(), *norm)
            works["ours + FP8 norm"] = partial(
                direct.all_reduce_add_rms_norm_fp8, x, residual, *norm
            )
        return works

    def _time(self, work: Callable[[], object], rounds: int) -> float:
        self._world.host.wait_for_all()
        return microseconds(self._device, work, rounds)


if __name__ == "__main__":
    main()
