# SPDX-License-Identifier: Apache-2.0
"""Linear layers of few rows on a GPU: ours against cuBLAS and the time to read the weight.

Replays of graphs over weights that rotate, so that the L2 cache holds none of them; contenders take
turns, and each result is checked against a product in float32 first. Layers with a gate are one
kernel of ours, and of cuBLAS the product alone. The limit is the time to read the weight at a
copy's rate.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from benchmark.gpu_time import captured, copy_bandwidth, the_gpu
from benchmark.report import Report, parser
from benchmark.rounds import interleave
from rtp_llm import ops
from rtp_llm.device import Device

GATED = "gate, up"
# The products of a layer: outputs and columns.
SHAPES = {
    "qwen3-8b": {
        "qkv": (6144, 4096),
        "out": (4096, 4096),
        GATED: (24576, 4096),
        "down": (4096, 12288),
    },
    "half of qwen3-8b": {
        "qkv": (3072, 4096),
        "out": (4096, 2048),
        GATED: (12288, 4096),
        "down": (4096, 6144),
    },
    "half of llama-70b": {
        "qkv": (5120, 8192),
        "out": (8192, 4096),
        GATED: (28672, 8192),
        "down": (8192, 14336),
    },
}
ROWS = (1, 4, 8, 16, 32, 64)
COLUMNS = (
    "shape",
    "layer",
    "weight",
    "rows",
    "us",
    "cuBLAS us",
    "x cuBLAS",
    "limit us",
    "% of limit",
)
COLD_BYTES = 300 << 20  # of weights, several times the L2 cache
LIMIT = 5e-3  # relative error; rounding to bfloat16 alone is 1.7e-3


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--shape", choices=SHAPES, action="append", help="default: all")
    flags.add_argument("--rows", type=int, action="append", help="default: 1 to 64")
    arguments = flags.parse_args()
    device, rounds = the_gpu(), 3 if arguments.quick else 7
    rate = copy_bandwidth(device, rounds)
    report = Report(f"Linear layers in bfloat16 on {device.description()}", COLUMNS)
    report.notes.append(f"A copy reads and writes {rate / 1e12:.2f} TB/s.")
    for name in arguments.shape or SHAPES:
        for layer, (outputs, columns) in SHAPES[name].items():
            weights = random_weights(outputs, columns, device)
            limit = weights[0].nbytes / rate * 1e6
            largest = ops.skinny_linear_rows(weights[0])
            for rows in arguments.rows or [rows for rows in ROWS if rows <= largest]:
                ours, theirs = times(weights, rows, layer == GATED, device, rounds)
                what = (name, layer, f"{outputs} x {columns}", rows)
                result = (ours, theirs, theirs / ours, limit, 100 * limit / ours)
                report.add(**dict(zip(COLUMNS, what + result, strict=True)))
    report.print()
    report.write(arguments.json)


def random_weights(outputs: int, columns: int, device: Device) -> list[Tensor]:
    count = max(2, -(-COLD_BYTES // (2 * outputs * columns)))
    shape, place = (outputs, columns), device.torch_device
    return [
        torch.randn(shape, device=place, dtype=torch.bfloat16) / columns**0.5 for _ in range(count)
    ]


def times(
    weights: list[Tensor], rows: int, gated: bool, device: Device, rounds: int
) -> tuple[float, float]:
    """Microseconds of ours and of cuBLAS.

    Raises ValueError when ours is wrong.
    """
    x = torch.randn(rows, weights[0].shape[1], device=weights[0].device, dtype=torch.bfloat16)

    def ours(weight: Tensor) -> Tensor:
        if gated:
            return ops.gated_linear(x, weight, None, "silu")
        return ops.skinny_linear(x, weight)

    def theirs(weight: Tensor) -> Tensor:
        return functional.linear(x, weight)

    expected = x.float() @ weights[0].float().T
    if gated:
        gate, up = expected.chunk(2, dim=-1)
        expected = functional.silu(gate) * up
    error = float((ours(weights[0]).float() - expected).norm() / expected.norm())
    if not error < LIMIT:
        raise ValueError(f"{tuple(weights[0].shape)}, {rows} rows: relative error {error}")

    def replay(product: Callable[[Tensor], Tensor]) -> Callable[[], float]:
        turns = itertools.cycle(weights)
        return captured(device, lambda: product(next(turns)))

    results = interleave({"ours": replay(ours), "theirs": replay(theirs)}, rounds)
    return results["ours"].median, results["theirs"].median


if __name__ == "__main__":
    main()
