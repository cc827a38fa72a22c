# SPDX-License-Identifier: Apache-2.0
"""The gated delta rule and its convolution on a GPU, against the bandwidth and compute limits.

Qwen3-Next's heads in bfloat16 with float32 states. A step of one or a few tokens must read the
state and what the ring has of it, and writes the state in every few steps: the sequences stand at
different places of their rings and go on from step to step. Calls take turns with different states
where those would stay in the L2 cache. A prompt is computed in the chunked form.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmark.gpu_limits import Rates, measure_rates
from benchmark.gpu_time import microseconds, the_gpu
from benchmark.report import Report, parser
from rtp_llm import ops
from rtp_llm.device import Device

KEY_HEADS, HEADS, SIZE, TAPS, RING, CHUNK = 16, 32, 128, 4, 16, 64
CHANNELS = (2 * KEY_HEADS + HEADS) * SIZE
STATE_BYTES = HEADS * SIZE * SIZE * 4
RING_TOKEN_BYTES = KEY_HEADS * SIZE * 2 + HEADS * (SIZE + 1) * 4
BATCHES, WINDOWS = (1, 16, 64, 256), (1, 4)
PROMPTS = ((1, 2048), (1, 16384), (8, 2048))
_CACHE_BYTES = 1 << 28  # what calls in turn go over, so that the L2 cache holds nothing
_STEPS = 8


@dataclass(frozen=True)
class Blocks:
    """States of `count` sequences in the memory, and where each of them stands."""

    inputs: Tensor
    state: Tensor
    rings: list[Tensor]
    folded: Tensor

    @classmethod
    def of(cls, count: int, place: torch.device) -> Blocks:
        """Blocks full of small numbers."""

        def full(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.full((count, *shape), 0.01, dtype=dtype, device=place)

        half, single = torch.bfloat16, torch.float32
        rings = [
            full(RING, KEY_HEADS, SIZE, dtype=half),
            full(RING, HEADS, SIZE, dtype=single),
            full(RING, HEADS, dtype=single),
        ]
        folded = torch.zeros(count, HEADS, SIZE // 8, dtype=torch.int32, device=place)
        inputs = full(TAPS + RING // 2, CHANNELS, dtype=half)
        return cls(inputs, full(HEADS, SIZE, SIZE, dtype=single), rings, folded)


@dataclass(frozen=True)
class Bench:
    """One GPU, and what it reaches in its own measurements."""

    device: Device
    rounds: int
    rates: Rates

    @property
    def place(self) -> torch.device:
        return self.device.torch_device

    def decode(self) -> Report:
        """One token of each sequence, and a window of them."""
        columns = (
            "batch",
            "tokens",
            "rule us",
            "limit us",
            "% of limit",
            "conv us",
            "conv limit us",
        )
        report = Report("Gated delta rule, decode", columns)
        report.notes.append(f"copies run at {self.rates.copy / 1e12:.2f} TB/s")
        for tokens, batch in itertools.product(WINDOWS, BATCHES):
            report.add(batch=batch, tokens=tokens, **self._decode_row(batch, tokens))
        return report

    def _decode_row(self, batch: int, tokens: int) -> dict[str, float]:
        sets = max(1, min(64, _CACHE_BYTES // (batch * STATE_BYTES)))
        blocks = Blocks.of(batch * sets, self.place)
        rows = self._numbers(batch * tokens)
        starts = self._index(range(0, (batch + 1) * tokens, tokens))
        begins = torch.randint(100, 100 + RING // 2, (batch * sets,), device=self.place).int()
        folded = (begins - begins % tokens)[:, None, None].expand_as(blocks.folded)
        lengths = [begins * 0 + 107 + (1 + step) * tokens for step in range(_STEPS)]
        of_set = [self._index(range(s * batch, (s + 1) * batch)) for s in range(sets)]
        turns = [
            (starts, length[index.long()], index, index, tokens)
            for length, index in itertools.product(lengths, of_set)
        ]

        def steps(call: Callable[..., object]) -> float:
            def work() -> None:
                blocks.folded.copy_(folded)
                for turn in turns:
                    call(*turn)

            return microseconds(self.device, work, self.rounds) / len(turns)

        rule = steps(lambda *turn: self._rule(rows, blocks, turn))
        conv = steps(lambda *turn: self._conv(rows, blocks, turn))
        period = RING // 2 // tokens  # steps from one write of the state to the next
        ring_tokens = tokens * (period + 1) / 2
        numbers = RING_TOKEN_BYTES * (ring_tokens + tokens) + tokens * (CHANNELS + HEADS * SIZE) * 2
        limit = 1e6 * batch * (STATE_BYTES * (1 + 1 / period) + numbers) / self.rates.copy
        kept = 1e6 * batch * CHANNELS * 2 * (TAPS - 1 + 3 * tokens) / self.rates.copy
        return {
            "rule us": rule,
            "limit us": limit,
            "% of limit": 100 * limit / rule,
            "conv us": conv,
            "conv limit us": kept,
        }

    def prompts(self) -> Report:
        """Whole prompts from their beginning."""
        columns = (
            "sequences",
            "tokens",
            "rule us",
            "limit us",
            "times",
            "conv us",
            "conv limit us",
        )
        report = Report("Gated delta rule, prompts", columns)
        products = self.rates.products / 1e12
        report.notes.append(f"products of 8192 x 8192 run at {products:.0f} TFLOP/s")
        for sequences, tokens in PROMPTS:
            report.add(sequences=sequences, tokens=tokens, **self._prompt_row(sequences, tokens))
        return report

    def _prompt_row(self, sequences: int, tokens: int) -> dict[str, float]:
        blocks, total = Blocks.of(sequences, self.place), sequences * tokens
        rows = self._numbers(total)
        write = self._index(range(sequences))
        starts = self._index(range(0, total + 1, tokens))
        turn = starts, write * 0 + tokens, write * 0 - 1, write, tokens
        rule = microseconds(self.device, lambda: self._rule(rows, blocks, turn), self.rounds)
        conv = microseconds(self.device, lambda: self._conv(rows, blocks, turn), self.rounds)
        moved = total * (CHANNELS + HEADS * SIZE) * 2 + sequences * STATE_BYTES
        # Of a chunk and value head: k k^T, q k^T, T and P with u; k S, q S and k^T u.
        operations = 2.0 * total * HEADS * (4 * CHUNK * SIZE + 3 * SIZE * SIZE)
        limit = 1e6 * self.rates.seconds(moved, operations)
        return {
            "rule us": rule,
            "limit us": limit,
            "times": rule / limit,
            "conv us": conv,
            "conv limit us": 1e6 * 4 * total * CHANNELS / self.rates.copy,
        }

    def _rule(self, rows: tuple[Tensor, ...], blocks: Blocks, turn: tuple[object, ...]) -> None:
        qkv, ba, a_log, dt_bias, _ = rows
        states = blocks.state, *blocks.rings, blocks.folded
        ops.gated_delta_rule(qkv, ba, a_log, dt_bias, *states, *turn)  # type: ignore[arg-type]

    def _conv(self, rows: tuple[Tensor, ...], blocks: Blocks, turn: tuple[object, ...]) -> None:
        ops.causal_conv1d(rows[0], rows[-1], blocks.inputs, *turn)  # type: ignore[arg-type]

    def _numbers(self, tokens: int) -> tuple[Tensor, ...]:
        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, device=self.place)

        half = torch.bfloat16
        qkv, ba = normal(tokens, CHANNELS).to(half), normal(tokens, 2 * HEADS).to(half)
        return qkv, ba, normal(HEADS), normal(HEADS), normal(CHANNELS, TAPS).to(half)

    def _index(self, values: range) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.place)


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--rounds", type=int)
    arguments = flags.parse_args()
    device = the_gpu()
    bench = Bench(device, arguments.rounds or (2 if arguments.quick else 5), measure_rates(device))
    decoded = bench.decode()
    decoded.print()
    prompted = bench.prompts()
    prompted.print()
    decoded.rows += prompted.rows
    decoded.write(arguments.json)


if __name__ == "__main__":
    main()
