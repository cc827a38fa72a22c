"""How fast NIXL reads cached blocks of another GPU, beside a plain copy between the two.

A process with the second GPU offers its blocks; this one, with the first, reads them in the layers
of a request and begins again. The copy is the driver's, of all bytes in one piece: what the wire
gives. `UCX_TLS` and the like reach both sides.
"""

from __future__ import annotations

import functools
import statistics

import numpy as np
import torch
from numpy.typing import NDArray

from benchmark.gpu_time import the_gpu
from benchmark.report import Report, parser
from benchmark.transfer_reads import ReadsFrom, memory_of
from rtp_llm.disagg.layout import BlockPart, make_rows

MEBIBYTES = (1, 4, 16, 64, 256, 1024)
BLOCK_KIB = (32, 256)
LAYERS = 16
COPIES = 20  # between two marks of a stream
GOAL = 200.0  # GB/s at 64 MiB
COLUMNS = ("MiB", "block KiB", "in a run", "GB/s", "median", "copy GB/s", "of the copy, %")


def main() -> None:
    """Measure, print, write."""
    flags = parser(__doc__ or "")
    flags.add_argument("--mebibytes", type=int, action="append", help="of a request; may repeat")
    flags.add_argument("--rounds", type=int, default=20)
    options = flags.parse_args()
    device = the_gpu()
    if device.device_count() < 2:
        raise SystemExit("two GPUs are needed, one for each side")
    device.make_current()
    sizes = [size << 20 for size in options.mebibytes or MEBIBYTES]
    report = Report(f"NIXL between two GPUs, {device.description()}", COLUMNS)
    for size in sizes[:1] if options.quick else sizes:
        copied = _copy_rate(size)
        memory, region = memory_of(device, size)
        for kib in BLOCK_KIB:
            for run in (1, 0):
                layers = functools.partial(_layers, block_bytes=kib << 10, scattered=not run)
                reader = ReadsFrom("nixl", region, layers, device, {"LOCAL_RANK": "1"})
                seconds = [reader.move() for _ in range(options.rounds)]
                reader.close()
                moved = sum(int(rows[:, 5].sum()) for _, rows in layers(*region[:2]))
                best, middle = moved / min(seconds), moved / statistics.median(seconds)
                report.add(
                    **{
                        "MiB": size >> 20,
                        "block KiB": kib,
                        "in a run": "yes" if run else "no",
                        "GB/s": best / 1e9,
                        "median": middle / 1e9,
                        "copy GB/s": copied / 1e9,
                        "of the copy, %": 100 * best / copied,
                    }
                )
        del memory
    report.notes.append(f"from the order to store until all has come; goal {GOAL:.0f} at 64 MiB")
    report.print()
    report.write(options.json)


def _layers(
    address: int, size: int, block_bytes: int, scattered: bool
) -> list[tuple[int, NDArray[np.int64]]]:
    """Blocks that fill the memory; scattered: every other one, so that no two are neighbours."""
    numbers = np.arange(0, size // block_bytes, 2 if scattered else 1)
    return [
        (
            layer,
            make_rows(0, BlockPart(part, part, part), address + part * block_bytes, block_bytes),
        )
        for layer, part in enumerate(np.array_split(numbers, LAYERS))
        if len(part)
    ]


def _copy_rate(size: int) -> float:
    """Bytes in a second that copies from the second GPU get."""
    device = the_gpu()
    here, there = (torch.zeros(size, dtype=torch.uint8, device=f"cuda:{i}") for i in (0, 1))
    begin, end = device.new_event(timed=True), device.new_event(timed=True)
    seconds = []
    for _ in range(5):
        begin.record()
        for _ in range(COPIES):
            here.copy_(there)
        end.record()
        end.synchronize()
        seconds.append(begin.elapsed_time(end) / 1000 / COPIES)
    return size / min(seconds)


if __name__ == "__main__":
    main()
