# SPDX-License-Identifier: Apache-2.0
"""Measurements of where FlashInfer is faster than this project's own attention.

The rows come from the output of `./dev bench gpu_attention --heads HEADS`; see the tables in
docs/performance_gpu.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from rtp_llm.attention.backend import AttentionConfig

Ratios = tuple[float, float]


@dataclass(frozen=True)
class Measured:
    """FlashInfer's time relative to the alternative: minimum and maximum over cases.

    `long`: batches of prompts only, the longest with at least `long_from` keys. `short`: other
    batches of prompts only. `mixed`: prompts and decodes. `decoding`: decode steps, which with
    FlashInfer need an additional kernel for rotation and the cache write.
    """

    gpu: str
    version: str
    architecture: str
    head_dim: int
    group: int  # query heads for each KV head
    long_from: int
    long: Ratios
    short: Ratios
    mixed: Ratios
    decoding: Ratios

    @property
    def long_is_faster(self) -> bool:
        """Whether FlashInfer was faster in every case of long prompts."""
        return self.long[1] < 1

    def __str__(self) -> str:
        times = {
            f"in prompts from {self.long_from} keys on": self.long,
            "in shorter ones": self.short,
            "in mixed batches": self.mixed,
            "in decoding": self.decoding,
        }
        words = (
            f"{lowest:.2f} to {highest:.2f} {kind}" for kind, (lowest, highest) in times.items()
        )
        return f"{self.version} took on {self.gpu}, of the time without it: {', '.join(words)}"


_H200 = ("an H200", "0.6.0", "sm_90", 128)
MEASURED = (
    Measured(*_H200, 2, 8192, (0.90, 0.95), (0.71, 1.24), (1.01, 1.57), (0.98, 2.64)),
    Measured(*_H200, 4, 8192, (0.87, 0.95), (0.71, 1.03), (1.39, 2.82), (0.95, 2.43)),
)


def find_measured(config: AttentionConfig) -> Measured | None:
    """The measurements for the head sizes of `config` on this kind of GPU, or None."""
    wanted = (
        config.capabilities.architecture,
        config.head_dim,
        config.num_heads // config.num_kv_heads,
    )
    if any(config.windows):
        return None
    for row in MEASURED:
        if (row.architecture, row.head_dim, row.group) == wanted:
            return row
    return None
