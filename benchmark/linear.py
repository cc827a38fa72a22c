# SPDX-License-Identifier: Apache-2.0
"""Linear layers on the CPU: time, bytes a second and share of the read bandwidth, against torch.

Weights are rotated so that nothing stays in a cache, and lie on huge pages for both contenders,
which take turns. int8 is compared with torch's float32 on the same shape. GB/s counts each weight
once; with many rows the limit is arithmetic instead (GFLOP/s).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from benchmark.bandwidth import read_bandwidth
from benchmark.report import Report, parser
from rtp_llm import ops
from rtp_llm.ops import huge_pages
from rtp_llm.quantization.int8 import pack, quantize_rows

# (inputs, outputs): the products of a layer of Qwen3-0.6B, and of the small shape (hidden 512).
SHAPES = {
    "qwen3-0.6b": ((1024, 4096), (2048, 1024), (1024, 6144), (3072, 1024)),
    "small": ((512, 1024), (512, 512), (512, 3072), (1536, 512)),
}
ROWS = (1, 2, 4, 8, 16, 32, 64, 256, 2048)
KINDS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
COLUMNS = ("shape", "weights", "rows", "us", "GB/s", "of read", "GFLOP/s", "torch us", "x torch")
_CACHES = 96 * 2**20  # bytes of weights to rotate: well over the last-level cache
_TURN_SECONDS = 0.02


@dataclass(frozen=True)
class Contender:
    """`run(i)` is one product with weight i of `count`; `weight_bytes` is what it must read."""

    run: Callable[[int], Tensor]
    count: int
    weight_bytes: int


def main() -> None:
    """Measure all cases and print the table."""
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--shape", choices=SHAPES, action="append", help="default: all")
    flags.add_argument("--kind", choices=[*KINDS, "int8"], action="append", help="default: all")
    flags.add_argument("--rows", type=int, action="append", help="rows of x; default: 1 to 2048")
    flags.add_argument("--seconds", type=float, default=0.5, help="time for each line")
    arguments = flags.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_grad_enabled(False)
    limit = read_bandwidth()
    report = Report("Linear layers on the CPU", COLUMNS)
    report.notes.append(f"Read bandwidth, measured in this run: {limit / 1e9:.1f} GB/s.")
    report.notes.append(f"Instruction set: {ops.cpu_isa()}.")
    rows = arguments.rows or (ROWS[:6] if arguments.quick else ROWS)
    for name in arguments.shape or (["small"] if arguments.quick else SHAPES):
        for inputs, outputs in SHAPES[name]:
            for kind in arguments.kind or [*KINDS, "int8"]:
                _measure(report, kind, inputs, outputs, rows, limit, arguments.seconds)
    report.print()
    report.write(arguments.json)


def _measure(
    report: Report,
    kind: str,
    inputs: int,
    outputs: int,
    rows: tuple[int, ...],
    limit: float,
    seconds: float,
) -> None:
    dtype = KINDS.get(kind, torch.float32)
    weights = _weights(inputs, outputs, dtype)
    packed = [pack(*quantize_rows(weight)) for weight in weights] if kind == "int8" else []
    for count in rows:
        x = torch.randn(count, inputs).to(dtype)
        ours = _ours(x, weights, packed)
        torchs = Contender(lambda i, x=x: functional.linear(x, weights[i]), len(weights), 0)
        best, peer = _race([ours, torchs], seconds)
        work = 2 * inputs * outputs * count
        report.add(
            **{
                "shape": f"{inputs} -> {outputs}",
                "weights": kind,
                "rows": count,
                "us": best * 1e6,
                "GB/s": ours.weight_bytes / best / 1e9,
                "of read": ours.weight_bytes / best / limit,
                "GFLOP/s": work / best / 1e9,
                "torch us": peer * 1e6,
                "x torch": peer / best,
            }
        )


def _weights(inputs: int, outputs: int, dtype: torch.dtype) -> list[Tensor]:
    count = max(2, -(-_CACHES // (inputs * outputs * dtype.itemsize)))
    memory = huge_pages.empty((count, outputs, inputs), dtype)
    for weight in memory:
        weight.normal_(std=0.05)
    return list(memory)


def _ours(x: Tensor, weights: list[Tensor], packed: list[tuple[Tensor, Tensor]]) -> Contender:
    if packed:
        size = sum(part.nbytes for part in packed[0])
        return Contender(lambda i: ops.int8_linear(x, *packed[i]), len(packed), size)
    return Contender(lambda i: ops.linear(x, weights[i]), len(weights), weights[0].nbytes)


def _race(contenders: list[Contender], seconds: float) -> list[float]:
    """The best time of one call of each; they take turns of many calls."""
    best = [float("inf")] * len(contenders)
    end = time.perf_counter() + seconds
    turn = 0
    while turn < 2 or time.perf_counter() < end:
        for number, contender in enumerate(contenders):
            stop = time.perf_counter() + _TURN_SECONDS
            for i in range(contender.count):
                began = time.perf_counter()
                contender.run(i)
                ended = time.perf_counter()
                best[number] = min(best[number], ended - began)
                if ended > stop:
                    break
        turn += 1
    return best


if __name__ == "__main__":
    main()
