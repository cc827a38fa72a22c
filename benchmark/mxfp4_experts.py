# SPDX-License-Identifier: Apache-2.0
"""Experts in MXFP4 on the CPU: CPU time of a product, next to that with bfloat16 weights."""

from __future__ import annotations

import torch

from benchmark.report import Report, parser
from benchmark.rounds import least_cpu_seconds
from rtp_llm import ops

EXPERTS, WIDTH = 4, 2880  # those of a token of gpt-oss, and the columns and rows of each
ROWS = (1, 2, 4, 8, 32, 128)
_ROUNDS = 9


def main() -> None:
    """Measure each number of rows, the two kinds taking turns, and print the least times."""
    arguments = parser(__doc__.splitlines()[0]).parse_args()
    torch.set_num_threads(1)  # CPU time is that of all threads
    torch.set_grad_enabled(False)
    shape = EXPERTS, WIDTH
    blocks = torch.randint(256, (*shape, WIDTH // 2), dtype=torch.uint8).view(torch.int8)
    scales = torch.randint(118, 125, (*shape, WIDTH // 32), dtype=torch.int8)
    floats = torch.randn(*shape, WIDTH, dtype=torch.bfloat16)
    columns = ("rows of each expert", "MXFP4 ms", "bfloat16 ms", "MXFP4 GB/s")
    report = Report("Experts in MXFP4 on the CPU", columns)
    report.notes.append(f"Instruction set: {ops.cpu_isa()}.")
    for rows in ROWS[:3] if arguments.quick else ROWS:
        x = torch.randn(EXPERTS * rows, WIDTH, dtype=torch.bfloat16)
        offsets = torch.arange(0, len(x) + 1, rows, dtype=torch.int32)
        packed, wide = least_cpu_seconds(
            _ROUNDS,
            lambda x=x, at=offsets: ops.mxfp4_grouped_linear(x, blocks, scales, at),
            lambda x=x, at=offsets: ops.grouped_linear(x, floats, at),
        )
        rate = (blocks.numel() + scales.numel()) / packed / 1e9
        times = (f"{packed * 1e3:.2f}", f"{wide * 1e3:.2f}", f"{rate:.1f}")
        report.add(**dict(zip(columns, (rows, *times), strict=True)))
    report.print()
    report.write(arguments.json)


if __name__ == "__main__":
    main()
