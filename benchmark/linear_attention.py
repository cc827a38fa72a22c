# SPDX-License-Identifier: Apache-2.0
"""The gated delta rule and its convolution on the CPU: time, and share of the hardware limit.

Prompts are compared with the chunked PyTorch of transformers, and count the arithmetic of a token
by token rule (6 Dk Dv a value head). Decode steps count the bytes of the states, which each step
reads once, against the read bandwidth of this machine; "fold" is the step that writes them too, one
of every eight with one token a step.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional
from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

from benchmark.bandwidth import read_bandwidth
from benchmark.report import Report, parser
from rtp_llm import ops
from rtp_llm.ops import huge_pages

KINDS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
COLUMNS = ("what", "dtype", "batch", "tokens", "us", "GB/s", "of read", "GFLOP/s", "x torch")
PROMPTS = ((1, 512), (1, 2048), (4, 512))
STEPS = ((1, 1), (1, 4), (16, 1), (16, 4), (64, 1))
HEADS, SIZE, RING, TAPS = (4, 8), 128, 16, 4
CHANNELS = (2 * HEADS[0] + HEADS[1]) * SIZE


def main() -> None:
    """Measure all cases and print the table."""
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--kind", choices=KINDS, action="append", help="default: all")
    flags.add_argument("--seconds", type=float, default=0.5, help="time for each line")
    arguments = flags.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_grad_enabled(False)
    limit = read_bandwidth()
    report = Report(f"Linear attention on the CPU, heads {HEADS} of {SIZE}", COLUMNS)
    report.notes.append(f"Read bandwidth, measured in this run: {limit / 1e9:.1f} GB/s.")
    report.notes.append(f"Instruction set: {ops.cpu_isa()}.")
    for kind in arguments.kind or KINDS:
        for batch, tokens in PROMPTS[:1] if arguments.quick else PROMPTS:
            _measure_prompt(report, Batch(kind, batch, tokens, 0), arguments.seconds)
        for batch, tokens in STEPS[:1] if arguments.quick else STEPS:
            for start in (0, RING // 2):
                _measure_step(report, Batch(kind, batch, tokens, start), limit, arguments.seconds)
    report.print()
    report.write(arguments.json)


class Batch:
    """`batch` sequences of `start` tokens with `tokens` new ones each; a prompt reads no state."""

    def __init__(self, kind: str, batch: int, tokens: int, start: int) -> None:
        dtype, (key_heads, heads) = KINDS[kind], HEADS
        self.kind, self.batch, self.tokens, self.start = kind, batch, tokens, start
        self.x = torch.randn(batch * tokens, CHANNELS).to(dtype)
        self.ba = torch.randn(batch * tokens, 2 * heads).to(dtype)
        self.constants = torch.rand(heads), torch.randn(heads)
        self.weight = torch.randn(CHANNELS, TAPS).to(dtype)
        self.inputs = torch.zeros(batch, TAPS + 8, CHANNELS, dtype=dtype)
        self.state = huge_pages.empty((batch, heads, SIZE, SIZE), torch.float32).normal_()
        self.ring = (
            torch.randn(batch, RING, key_heads, SIZE).to(dtype),
            torch.randn(batch, RING, heads, SIZE),
            -torch.rand(batch, RING, heads),
        )
        self.folded = torch.zeros(batch, heads, SIZE // 8, dtype=torch.int32)
        blocks = torch.arange(batch, dtype=torch.int32)
        self.step = (
            torch.arange(0, batch * tokens + 1, tokens, dtype=torch.int32),
            torch.full((batch,), start + tokens, dtype=torch.int32),
            blocks if tokens <= RING // 2 else torch.full_like(blocks, -1),
            blocks,
            tokens,
        )

    def convolve(self) -> Tensor:
        """Run the convolution of the new tokens."""
        return ops.causal_conv1d(self.x, self.weight, self.inputs, *self.step)

    def rule(self) -> Tensor:
        """Run the delta rule of the new tokens; a step that folds does so on every call."""
        self.folded.zero_()
        memory = self.state, *self.ring, self.folded
        return ops.gated_delta_rule(self.x, self.ba, *self.constants, *memory, *self.step)

    def torch_rule(self) -> Tensor:
        """Run what transformers computes for one sequence."""
        key_heads, heads = HEADS
        width = key_heads * SIZE
        q, k, v = self.x.split_with_sizes([width, width, heads * SIZE], dim=1)
        q, k = (
            each.unflatten(1, (key_heads, SIZE)).repeat_interleave(heads // key_heads, 1)
            for each in (q, k)
        )
        b, a = self.ba.float().chunk(2, dim=1)
        a_log, dt_bias = self.constants
        g = -a_log.exp() * functional.softplus(a + dt_bias)
        rows = q, k, v.unflatten(1, (heads, SIZE)), g, b.sigmoid()
        batched = (each.unflatten(0, (self.batch, self.tokens)) for each in rows)
        out, _ = torch_chunk_gated_delta_rule(
            *batched, initial_state=None, output_final_state=True, use_qk_l2norm_in_kernel=True
        )
        result: Tensor = out
        return result


def _measure_prompt(report: Report, batch: Batch, seconds: float) -> None:
    time_taken, peer = _best(batch.rule, seconds), _best(batch.torch_rule, seconds)
    work = 6 * SIZE * SIZE * HEADS[1] * batch.batch * batch.tokens
    rates = {"GFLOP/s": work / time_taken / 1e9, "x torch": peer / time_taken}
    _add(report, "prompt", batch, time_taken, rates)
    time_taken = _best(batch.convolve, seconds)
    _add(report, "conv", batch, time_taken, {"GB/s": 2 * batch.x.nbytes / time_taken / 1e9})


def _measure_step(report: Report, batch: Batch, limit: float, seconds: float) -> None:
    folds = batch.start + batch.tokens > RING // 2
    time_taken = _best(batch.rule, seconds)
    rate = batch.state.nbytes * (2 if folds else 1) / time_taken
    rates = {"GB/s": rate / 1e9, "of read": rate / limit}
    _add(report, "fold" if folds else "step", batch, time_taken, rates)
    if not folds:
        time_taken = _best(batch.convolve, seconds)
        _add(report, "conv", batch, time_taken, {"GB/s": 2 * batch.x.nbytes / time_taken / 1e9})


def _add(report: Report, what: str, batch: Batch, seconds: float, rates: dict[str, float]) -> None:
    row = {"what": what, "dtype": batch.kind, "batch": batch.batch, "tokens": batch.tokens}
    report.add(**row, us=seconds * 1e6, **rates)


def _best(run: Callable[[], Tensor], seconds: float) -> float:
    """The best time of one call."""
    run()
    best, end = float("inf"), time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        run()
        best = min(best, time.perf_counter() - began)
    return best


if __name__ == "__main__":
    main()
