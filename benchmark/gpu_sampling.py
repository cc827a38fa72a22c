# SPDX-License-Identifier: Apache-2.0
"""Sampling tokens on a GPU, against torch's sort and the time to read the logits once.

Vocabulary of Qwen3: 151,936 float32 logits a row. So many batches take turns that nothing stays in
the GPU's cache.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmark.gpu_time import copy_bandwidth, microseconds, the_gpu
from benchmark.report import Report, parser
from rtp_llm import ops
from rtp_llm.device import Device

VOCABULARY = 151_936
ROWS = (1, 16, 64, 256)
ROTATED_BYTES = 2**28
LOGPROBS = 20
COLUMNS = ("rows", "spread", "settings", "us", "limit us", "% of limit", "torch us", "gain")


@dataclass(frozen=True)
class Settings:
    """One row's settings, for all rows."""

    name: str
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def columns(self, rows: int, device: torch.device) -> tuple[Tensor, ...]:
        """Return the arguments of ops.sample other than the logits, each of shape [rows]."""
        return (
            torch.full((rows,), self.temperature, device=device),
            torch.full((rows,), self.top_k, dtype=torch.int32, device=device),
            torch.full((rows,), self.top_p, device=device),
            torch.full((rows,), self.min_p, device=device),
            torch.arange(rows, device=device),
            torch.zeros(rows, dtype=torch.int64, device=device),
        )


SETTINGS = (
    Settings("greedy", temperature=0.0),
    Settings("temperature"),
    Settings("top-k 50", top_k=50),
    Settings("top-p 0.9", top_p=0.9),
    Settings("both", top_k=50, top_p=0.9),
    Settings("min-p 0.05", min_p=0.05),
)


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--rows", type=int, action="append")
    arguments = flags.parse_args()
    device = the_gpu()
    rounds = 2 if arguments.quick else 5
    rate = copy_bandwidth(device, rounds)
    report = Report(f"Sampling on {device.description()}", COLUMNS)
    report.notes.append(f"limit: the logits once at {rate / 1e12:.2f} TB/s, the rate of a copy.")
    for rows in arguments.rows or ROWS[: 2 if arguments.quick else len(ROWS)]:
        # Logits of random weights are near each other; those of trained ones are far apart.
        for spread in (1.0, 4.0):
            measure(report, device, rows, spread, rounds, rate)
    report.print()
    report.write(arguments.json)


def measure(
    report: Report, device: Device, rows: int, spread: float, rounds: int, rate: float
) -> None:
    """All settings on batches of so many rows."""
    count = max(1, ROTATED_BYTES // (rows * VOCABULARY * 4))
    shape = (rows, VOCABULARY)
    batches = [spread * torch.randn(shape, device=device.torch_device) for _ in range(count)]
    limit = batches[0].nbytes / rate * 1e6
    tokens = torch.zeros(rows, dtype=torch.int32, device=device.torch_device)

    def add(name: str, ours: Callable[[Tensor], object], peer: Callable[[Tensor], object]) -> None:
        us, theirs = (each(device, work, batches, rounds) for work in (ours, peer))
        figures = {"us": us, "limit us": limit, "% of limit": 100 * limit / us}
        row = {"rows": rows, "spread": spread, "settings": name, **figures}
        report.add(**row, **{"torch us": theirs, "gain": theirs / us})

    for settings in SETTINGS:
        columns = settings.columns(rows, device.torch_device)
        sample = functools.partial(_sample, columns)
        add(settings.name, sample, functools.partial(by_sorting, settings))
    add(
        f"logprobs {LOGPROBS}",
        lambda logits: ops.top_logprobs(logits, tokens, LOGPROBS),
        lambda logits: logits.log_softmax(dim=1).topk(LOGPROBS, dim=1),
    )


def each(
    device: Device, work: Callable[[Tensor], object], batches: Sequence[Tensor], rounds: int
) -> float:
    """Return the microseconds for one batch."""

    def all_batches() -> None:
        for logits in batches:
            work(logits)

    return microseconds(device, all_batches, rounds) / len(batches)


def _sample(columns: tuple[Tensor, ...], logits: Tensor) -> Tensor:
    return ops.sample(logits, *columns)[0]


def by_sorting(settings: Settings, logits: Tensor) -> Tensor:
    """Sample with torch: argmax, or sort, filters and a choice by exponential random numbers."""
    if settings.temperature == 0:
        return logits.argmax(dim=1)
    ordered, ids = (logits / settings.temperature).sort(dim=1, descending=True)
    p = ordered.softmax(dim=1)
    if settings.top_k:
        p[:, settings.top_k :] = 0
    if settings.top_p < 1:
        p.masked_fill_(p.cumsum(dim=1) - p > settings.top_p * p.sum(dim=1, keepdim=True), 0)
    if settings.min_p:
        p.masked_fill_(p < settings.min_p * p[:, :1], 0)
    return ids.gather(1, (p / torch.empty_like(p).exponential_()).argmax(dim=1, keepdim=True))


if __name__ == "__main__":
    main()
