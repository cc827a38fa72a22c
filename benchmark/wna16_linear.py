# SPDX-License-Identifier: Apache-2.0
"""Linear layers with 4- and 8-bit weights in groups on the CPU, next to bfloat16 weights."""

from __future__ import annotations

import torch

from benchmark.report import Report, parser
from benchmark.rounds import least_cpu_seconds
from rtp_llm import ops
from rtp_llm.ops.gemm import wna16_layout
from rtp_llm.ops.gemm.wna16_layout import Wna16Weights

ROWS = (1, 2, 4, 8, 16, 32, 128, 512)
KINDS = ((4, 128), (4, 32), (8, 128))  # bits, columns of a group
_ROUNDS = 7


def main() -> None:
    """Measure each number of rows, the kinds taking turns, and print the least times."""
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--isa", default="", help="avx512, avx512_base, avx2 or scalar")
    arguments.add_argument("--outputs", type=int, default=12288)
    arguments.add_argument("--columns", type=int, default=4096)
    given = arguments.parse_args()
    torch.set_num_threads(1)  # CPU time is that of all threads
    torch.set_grad_enabled(False)
    if given.isa:
        with ops.forced_cpu_isa(given.isa):
            _measure(given.outputs, given.columns, given.quick, given.json)
    else:
        _measure(given.outputs, given.columns, given.quick, given.json)


def _measure(outputs: int, columns: int, quick: bool, path: str | None) -> None:
    floats = torch.randn(outputs, columns, dtype=torch.bfloat16)
    packed = {kind: _random(outputs, columns, *kind) for kind in KINDS}
    names = [f"{bits} bits in {group}" for bits, group in KINDS]
    report = Report(f"Linear layer {outputs} x {columns}, CPU ms", ("rows", "bfloat16", *names))
    report.notes.append(f"Instruction set: {ops.cpu_isa()}.")
    for rows in ROWS[:4] if quick else ROWS:
        x = torch.randn(rows, columns, dtype=torch.bfloat16)
        products = [lambda x=x: ops.linear(x, floats)]
        for (bits, group), weights in packed.items():
            products.append(
                lambda x=x, w=weights, b=bits, g=group: ops.wna16_linear(x, *w, outputs, b, g)
            )
        times = [f"{seconds * 1e3:.2f}" for seconds in least_cpu_seconds(_ROUNDS, *products)]
        report.add(**dict(zip(("rows", "bfloat16", *names), (rows, *times), strict=True)))
    report.print()
    report.write(path)


def _random(outputs: int, columns: int, bits: int, group: int) -> Wna16Weights:
    shape = outputs, columns // group
    return wna16_layout.pack(
        torch.randint(256, (outputs, columns * bits // 8), dtype=torch.uint8),
        torch.rand(shape) / 100,
        torch.full(shape, 1 << (bits - 1), dtype=torch.uint8),
        bits,
        group,
    )


if __name__ == "__main__":
    main()
