# SPDX-License-Identifier: Apache-2.0
"""N-gram drafts from token histories on a GPU: microseconds, against reading the histories once.

Random tokens of a vocabulary of 150,000: nothing occurs twice, so that all of a history is read.
So many batches take turns that nothing stays in the GPU's cache.
"""

from __future__ import annotations

import torch

from benchmark.gpu_time import copy_bandwidth, microseconds, the_gpu
from benchmark.report import Report, parser
from rtp_llm import ops
from rtp_llm.device import Device

VOCABULARY = 150_000
ROTATED_BYTES = 2**28
DRAFTS = 3
SIZES = ((1, 4096), (1, 32768), (16, 32768), (256, 4096), (256, 32768))
COLUMNS = ("sequences", "tokens", "match us", "limit us", "append us")


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    arguments = flags.parse_args()
    device = the_gpu()
    rounds = 2 if arguments.quick else 5
    rate = copy_bandwidth(device, rounds)
    report = Report(f"Drafts by n-grams on {device.description()}", COLUMNS)
    report.notes.append(f"limit: the histories once at {rate / 1e12:.2f} TB/s, the rate of a copy.")
    for sequences, tokens in SIZES[: 2 if arguments.quick else len(SIZES)]:
        measure(report, device, sequences, tokens, rounds, rate)
    report.print()
    report.write(arguments.json)


def measure(
    report: Report, device: Device, sequences: int, tokens: int, rounds: int, rate: float
) -> None:
    """Add one row to the report."""
    place = device.torch_device
    shape = sequences, tokens
    count = min(64, max(1, ROTATED_BYTES // (sequences * tokens * 4)))
    histories = [
        torch.randint(0, VOCABULARY, shape, dtype=torch.int32, device=place) for _ in range(count)
    ]
    lens = torch.full((sequences,), tokens, dtype=torch.int32, device=place)
    outputs = torch.arange(sequences, dtype=torch.int32, device=place)
    cu_rows = (1 + DRAFTS) * torch.arange(sequences + 1, dtype=torch.int32, device=place)
    drafts = torch.zeros(sequences * (1 + DRAFTS), dtype=torch.int32, device=place)

    def match() -> None:
        for history in histories:
            ops.match_ngrams(drafts, history, lens, outputs, cu_rows, 2, 4)

    def append() -> None:
        for history in histories:
            ops.append_accepted(history, lens, outputs, cu_rows, drafts, drafts)

    report.add(
        **{
            "sequences": sequences,
            "tokens": tokens,
            "match us": microseconds(device, match, rounds) / count,
            "limit us": histories[0].nbytes / rate * 1e6,
            "append us": microseconds(device, append, rounds) / count,
        }
    )


if __name__ == "__main__":
    main()
