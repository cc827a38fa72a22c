# SPDX-License-Identifier: Apache-2.0
"""Rotary embedding and cache write on a GPU: fused against separate kernels, in captured graphs.

Decode: a new token of each request. Prefill: requests of 4,096 tokens, or one shorter one. "apart"
is a rotary kernel and then two index writes; "norm" columns also normalise query and key heads;
"copy" is a kernel that only moves as many bytes. Bytes are the projection read, the queries
written, keys and values stored, and the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmark.gpu_time import copy_bandwidth, microseconds, the_gpu
from benchmark.report import Report, parser
from rtp_llm import compat, ops

HEADS, KV_HEADS, HEAD_DIM, BLOCK = 16, 8, 128, 16
DECODE = (1, 4, 16, 64, 128, 256)
PREFILL = (1024, 2048, 4096, 8192, 16384, 32768)
PROMPT = 4096
COLUMNS = (
    "tokens",
    "fused us",
    "TB/s",
    "of copy",
    "copy us",
    "rope_kv_write us",
    "apart us",
    "gain",
    "fused norm us",
    "norm, fused us",
)


@dataclass(frozen=True)
class Case:
    """A step's tensors; blocks of the cache in random order."""

    qkv: Tensor
    out: Tensor
    cache: Tensor
    table: Tensor  # cosines and sines
    offsets: Tensor
    past: Tensor
    cu_seqlens: Tensor | None
    positions: Tensor
    slots: Tensor
    weight: Tensor
    copied: Tensor

    @staticmethod
    def random(tokens: int, decode: bool, device: torch.device) -> Case:
        requests = tokens if decode else max(tokens // PROMPT, 1)
        length = PROMPT if decode else tokens // requests
        width = length // BLOCK
        blocks = requests * width
        table = torch.randperm(blocks, device=device).int().view(requests, width)
        past = torch.full((requests,), length - 1 if decode else 0, device=device).int()
        in_sequence = torch.arange(tokens, device=device) % length if not decode else past
        request = torch.arange(tokens, device=device) * requests // tokens
        slots = table[request, in_sequence // BLOCK] * BLOCK + in_sequence % BLOCK
        steps = torch.arange(0, tokens + 1, length, device=device).int()
        dtype = torch.bfloat16
        return Case(
            torch.randn(tokens, (HEADS + 2 * KV_HEADS) * HEAD_DIM, device=device).to(dtype),
            torch.empty(tokens, HEADS, HEAD_DIM, device=device, dtype=dtype),
            torch.zeros(2, blocks, BLOCK, KV_HEADS, HEAD_DIM, device=device, dtype=dtype),
            ops.rope_table(ops.RopeConfig("default", HEAD_DIM), PROMPT, device),
            compat.convert_offset_to_block_array(table, blocks),
            past,
            None if decode else steps,
            in_sequence.int(),
            slots.int(),
            torch.ones(HEAD_DIM, device=device, dtype=dtype),
            torch.empty(tokens, (HEADS + 2 * KV_HEADS) * HEAD_DIM, device=device, dtype=dtype),
        )

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        heads = self.qkv.view(len(self.qkv), -1, HEAD_DIM)
        keys = HEADS + KV_HEADS
        return heads[:, :HEADS], heads[:, HEADS:keys], heads[:, keys:]

    @property
    def bytes(self) -> int:
        return 2 * self.qkv.nbytes + len(self.qkv) * HEAD_DIM * 4

    def copy(self) -> None:
        """Move the minimum number of bytes: one projection is read, another one written."""
        torch.add(self.qkv, 0, out=self.copied)

    def fused(self, norm: bool = False) -> None:
        rows = self.cache.flatten(0, 1)
        ops.rotate_and_store(
            *self.parts,
            q_out=self.out,
            q_weight=self.weight if norm else None,
            k_weight=self.weight if norm else None,
            cos_sin=self.table,
            cu_seqlens=self.cu_seqlens,
            past_lengths=self.past,
            offsets=self.offsets,
            k_cache=rows,
            v_cache=rows,
        )

    def norm_then_fused(self) -> None:
        ops.qk_rms_norm(self.qkv, self.weight, self.weight, HEADS, KV_HEADS, 1e-6)
        self.fused()

    def in_place(self, stored: bool = True) -> None:
        ops.rope_kv_write(
            self.qkv,
            self.positions,
            self.table,
            self.cache if stored else None,
            self.slots if stored else None,
            HEADS,
            KV_HEADS,
            HEAD_DIM,
            True,
        )

    def apart(self) -> None:
        self.in_place(stored=False)
        _, k, v = self.parts
        slots = self.slots.long()
        for plane, heads in zip(self.cache, (k, v), strict=True):
            plane.view(-1, KV_HEADS, HEAD_DIM)[slots] = heads


def main() -> None:
    """Measure all cases and print the table."""
    arguments = parser(__doc__.splitlines()[0]).parse_args()
    device = the_gpu()
    rounds = 5 if arguments.quick else 30
    limit = copy_bandwidth(device, rounds)
    report = Report("Fused RoPE and cache write", COLUMNS)
    report.notes.append(f"{device.description()}; copies run at {limit / 1e12:.2f} TB/s.")
    for tokens in DECODE + PREFILL:
        case = Case.random(tokens, tokens in DECODE, device.torch_device)
        _add(report, case, limit, lambda work: microseconds(device, work, rounds))
    report.print()
    report.write(arguments.json)


def _add(
    report: Report, case: Case, limit: float, time: Callable[[Callable[[], object]], float]
) -> None:
    fused, apart = time(case.fused), time(case.apart)
    speed = case.bytes / fused * 1e6
    figures = (
        len(case.qkv),
        fused,
        speed / 1e12,
        speed / limit,
        time(case.copy),
        time(case.in_place),
        apart,
        apart / fused,
        time(lambda: case.fused(norm=True)),
        time(case.norm_then_fused),
    )
    report.add(**dict(zip(COLUMNS, figures, strict=True)))


if __name__ == "__main__":
    main()
