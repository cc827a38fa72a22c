# SPDX-License-Identifier: Apache-2.0
"""Paged attention and sampling on the CPU: share of the read bandwidth, compared with torch.

torch gets contiguous keys and values, already repeated for the heads of a group where prompts are
compared, and takes turns with ours; ours reads blocks in random order through the table. GB/s
counts keys and values once. Sampling has 32 rows of 151,936 logits; torch's way there is a sort,
or a softmax and multinomial() where nothing is left out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from benchmark.bandwidth import read_bandwidth
from benchmark.report import Report, parser
from benchmark.rounds import interleave
from rtp_llm import ops
from rtp_llm.ops import huge_pages

KINDS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
COLUMNS = ("case", "kind", "ms", "GB/s", "of read", "GFLOP/s", "torch ms", "x torch")
BLOCK_SIZE = 16
ROWS, VOCABULARY = 32, 151_936
_ROUND_SECONDS = 0.1


@dataclass(frozen=True)
class Shape:
    """A batch of `sequences` equally long sequences, each ending in `queries` new tokens."""

    sequences: int
    queries: int
    keys: int
    heads: int
    kv_heads: int
    head_dim: int

    @property
    def name(self) -> str:
        return (
            f"{self.sequences} x {self.queries} of {self.keys}, "
            f"heads {self.heads}/{self.kv_heads} x {self.head_dim}"
        )

    @property
    def flops(self) -> int:
        seen = self.queries * (2 * self.keys - self.queries + 1) // 2
        return 4 * self.sequences * self.heads * self.head_dim * seen


DECODE = (
    Shape(1, 1, 2048, 16, 8, 128),
    Shape(1, 1, 32768, 16, 8, 128),
    Shape(32, 1, 2048, 16, 8, 128),
    Shape(8, 1, 4096, 32, 8, 128),
    Shape(8, 1, 4096, 14, 2, 64),
    Shape(4, 1, 8192, 32, 4, 80),
)
PREFILL = (
    Shape(1, 128, 128, 16, 8, 128),
    Shape(1, 512, 512, 16, 8, 128),
    Shape(1, 2048, 2048, 16, 8, 128),
    Shape(1, 512, 4096, 16, 8, 128),
    Shape(1, 2048, 2048, 8, 8, 64),
    Shape(1, 1024, 1024, 28, 4, 128),
)
SAMPLING = {
    "greedy": (0.0, 0, 1.0),
    "temperature": (1.0, 0, 1.0),
    "top-k 50": (1.0, 50, 1.0),
    "top-p 0.9": (1.0, 0, 0.9),
    "top-k 50, top-p 0.9": (0.8, 50, 0.9),
}


def main() -> None:
    """Measure all cases and print the table."""
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    torch.set_grad_enabled(False)
    limit = read_bandwidth()
    report = Report("Attention and sampling on the CPU", COLUMNS)
    report.notes.append(f"Read bandwidth, measured in this run: {limit / 1e9:.1f} GB/s.")
    report.notes.append(f"Instruction set: {ops.cpu_isa()}.")
    kinds = arguments.kind or KINDS
    if arguments.only in (None, "decode", "prefill"):
        shapes = {"decode": DECODE, "prefill": PREFILL}
        wanted = [arguments.only] if arguments.only else list(shapes)
        for shape in (shape for name in wanted for shape in shapes[name]):
            if not arguments.quick or shape.sequences * shape.keys <= 2048:
                for kind in kinds:
                    _measure_attention(report, shape, kind, limit, arguments.rounds)
    if arguments.only in (None, "sampling"):
        _measure_sampling(report, arguments.rounds, limit)
    report.print()
    report.write(arguments.json)


def _arguments() -> argparse.Namespace:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--only", choices=["decode", "prefill", "sampling"], help="default: all")
    flags.add_argument("--kind", choices=KINDS, action="append", help="default: all")
    flags.add_argument("--rounds", type=int, default=5)
    return flags.parse_args()


def _measure_attention(report: Report, shape: Shape, kind: str, limit: float, rounds: int) -> None:
    contenders = {"ours": _ours(shape, KINDS[kind]), "torch": _torchs(shape, KINDS[kind])}
    times = _race(contenders, rounds)
    size = 2 * shape.sequences * shape.keys * shape.kv_heads * shape.head_dim
    speed = size * KINDS[kind].itemsize / times["ours"]
    figures = {"GB/s": speed / 1e9, "of read": speed / limit} if shape.queries == 1 else {}
    figures["GFLOP/s"] = shape.flops / times["ours"] / 1e9
    _add(report, shape.name, kind, times, figures)


def _ours(shape: Shape, dtype: torch.dtype) -> Callable[[], object]:
    blocks = -(-shape.keys // BLOCK_SIZE)
    total = shape.sequences * blocks
    cache = huge_pages.empty((2, total, BLOCK_SIZE, shape.kv_heads, shape.head_dim), dtype)
    cache.normal_()
    table = torch.randperm(total).int().view(shape.sequences, blocks)
    q = torch.randn(shape.sequences * shape.queries, shape.heads, shape.head_dim).to(dtype)
    cu_seqlens = torch.arange(shape.sequences + 1, dtype=torch.int32) * shape.queries
    lengths = torch.full((shape.sequences,), shape.keys, dtype=torch.int32)
    scale = shape.head_dim**-0.5
    return lambda: ops.paged_attention(
        q, cache, cu_seqlens, lengths, table, shape.queries, shape.keys, scale
    )


def _torchs(shape: Shape, dtype: torch.dtype) -> Callable[[], object]:
    q = torch.randn(shape.sequences, shape.heads, shape.queries, shape.head_dim).to(dtype)
    # Decoding is bound by memory: no copies for the heads of a group there.
    decode = shape.queries == 1
    heads = shape.kv_heads if decode else shape.heads
    k, v = torch.randn(2, shape.sequences, heads, shape.keys, shape.head_dim).to(dtype)
    mask = None
    if not decode and shape.queries != shape.keys:
        seen = torch.ones(shape.queries, shape.keys, dtype=torch.bool)
        seen = seen.tril(shape.keys - shape.queries)
        mask = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, -torch.inf)
    causal = shape.queries == shape.keys and not decode
    return lambda: functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=decode
    )


def _measure_sampling(report: Report, rounds: int, limit: float) -> None:
    logits = torch.randn(ROWS, VOCABULARY) * 2.5
    seeds, steps = torch.arange(ROWS), torch.zeros(ROWS, dtype=torch.int64)
    for name, (temperature, top_k, top_p) in SAMPLING.items():
        settings = (
            torch.full((ROWS,), temperature),
            torch.full((ROWS,), top_k, dtype=torch.int32),
            torch.full((ROWS,), top_p),
            torch.zeros(ROWS),
            seeds,
            steps,
        )
        contenders: dict[str, Callable[[], object]] = {
            "ours": partial(ops.sample, logits, *settings),
            "torch": partial(_sample_with_torch, logits, temperature, top_k, top_p),
        }
        times = _race(contenders, rounds)
        speed = logits.nbytes / times["ours"]
        figures = {"GB/s": speed / 1e9, "of read": speed / limit}
        _add(report, f"{ROWS} rows: {name}", "float32", times, figures)


def _sample_with_torch(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    if temperature == 0.0:
        return logits.argmax(dim=1)
    scaled = logits / temperature
    if top_k > 0:
        scaled, ids = scaled.topk(top_k, dim=1)
    elif top_p < 1.0:
        scaled, ids = scaled.sort(dim=1, descending=True)
    else:
        return torch.multinomial(scaled.softmax(dim=1), 1)[:, 0]
    weights = scaled.softmax(dim=1)
    weights[weights.cumsum(dim=1) - weights >= top_p] = 0.0
    return ids.gather(1, torch.multinomial(weights, 1))[:, 0]


def _race(contenders: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median over rounds of the mean seconds per call; a round is many short calls."""
    timed = {name: _timed(call) for name, call in contenders.items()}
    return {name: figure.median for name, figure in interleave(timed, rounds).items()}


def _timed(call: Callable[[], object]) -> Callable[[], float]:
    def run() -> float:
        began = time.perf_counter()
        calls = 0
        while time.perf_counter() - began < _ROUND_SECONDS:
            call()
            calls += 1
        return (time.perf_counter() - began) / calls

    return run


def _add(
    report: Report, name: str, kind: str, times: Mapping[str, float], figures: Mapping[str, float]
) -> None:
    ours, peer = times["ours"], times["torch"]
    own = {"case": name, "kind": kind, "ms": ours * 1e3}
    report.add(**own, **figures, **{"torch ms": peer * 1e3, "x torch": peer / ours})


if __name__ == "__main__":
    main()
