# SPDX-License-Identifier: Apache-2.0
"""Paged attention on a GPU: decode against the copy rate, prompts against torch's SDPA backends.

Shape of Qwen3-0.6B: 16 query heads (--heads) over 8 KV heads of 128, bfloat16, blocks of 16 in
random order. A decode step must read every key and value once; a prompt's limit is what the best
backend reaches, which reads keys and values that lie in one piece. FlashInfer has columns where it
is installed; from them are the rows of rtp_llm/attention/flashinfer_measured.py.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmark.flashinfer_attention import Planned
from benchmark.flashinfer_attention import plan as plan_flashinfer
from benchmark.gpu_time import copy_bandwidth, microseconds, the_gpu
from benchmark.report import Report, parser
from rtp_llm import ops
from rtp_llm.attention import AttentionConfig
from rtp_llm.attention.flashinfer import FlashInferBackend
from rtp_llm.attention.rotation import Rotation, rotate_in_one_pass
from rtp_llm.device import Device

KV_HEADS, HEAD_DIM, BLOCK = 8, 128, 16
BATCHES, CONTEXTS = (1, 16, 64, 256), (192, 1024, 8192, 65536)
PROMPTS = (512, 2048, 4096, 8192, 32768)
Lengths = list[tuple[int, int]]  # (new tokens, keys in all) of each sequence
MIXTURES: dict[str, Lengths] = {
    "16 prompts of 512": [(512, 512)] * 16,
    "4 prompts of 2,048": [(2048, 2048)] * 4,
    "2,048 after 14,336": [(2048, 16384)],
    "8,192 after 24,576": [(8192, 32768)],
    "500, and 255 that decode at 1,000": [(1, 1000)] * 255 + [(500, 500)],
    "4,000, and 64 that decode at 1,000": [(1, 1000)] * 64 + [(4000, 4000)],
    "8,000, and 64 that decode at 4,000": [(1, 4000)] * 64 + [(8000, 8000)],
    "2,000 after 14,000, and 16 that decode at 16,000": [(1, 16000)] * 16 + [(2000, 16000)],
}
Attention = Callable[..., Tensor]
SDPA = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


@dataclass(frozen=True)
class Case:
    """Sequences, the last tokens of each new; ``queries`` and ``keys`` are the most of any."""

    q: Tensor
    cache: Tensor
    cu_seqlens: Tensor
    seq_lens: Tensor
    table: Tensor
    queries: int
    keys: int

    @staticmethod
    def random(lengths: Lengths, device: torch.device, heads: int) -> Case:
        """Return a case with its cache blocks in random order."""
        queries, keys = (list(numbers) for numbers in zip(*lengths, strict=True))
        width = -(-max(keys) // BLOCK)
        blocks = [-(-count // BLOCK) for count in keys]
        cache = torch.empty(
            (2, sum(blocks), BLOCK, KV_HEADS, HEAD_DIM), dtype=torch.bfloat16, device=device
        )
        table = torch.full((len(keys), width), -1, dtype=torch.int32, device=device)
        used = torch.arange(width, device=device) < torch.tensor(blocks, device=device)[:, None]
        table[used] = torch.randperm(sum(blocks), device=device).int()
        return Case(
            torch.randn(sum(queries), heads, HEAD_DIM, device=device).bfloat16(),
            cache.normal_(),
            torch.tensor([0, *accumulate(queries)], dtype=torch.int32, device=device),
            torch.tensor(keys, dtype=torch.int32, device=device),
            table,
            max(queries),
            max(keys),
        )

    def arguments(self) -> tuple[Tensor | int | float, ...]:
        return (self.q, self.cache, *self.index(), self.queries, self.keys, HEAD_DIM**-0.5)

    def index(self) -> tuple[Tensor, Tensor, Tensor]:
        return (self.cu_seqlens, self.seq_lens, self.table)

    @property
    def heads(self) -> int:
        return self.q.shape[1]


@dataclass(frozen=True)
class Layer:
    """Other inputs of the case's decode step: projection, slots, a block table, norms."""

    case: Case
    qkv: Tensor
    positions: Tensor
    slots: Tensor
    rotation: Rotation
    counters: Tensor

    @staticmethod
    def random(case: Case, device: torch.device) -> Layer:
        batch, last = len(case.seq_lens), case.keys - 1
        weights = torch.rand(2, HEAD_DIM, device=device).bfloat16()
        return Layer(
            case,
            torch.randn(batch, (case.heads + 2 * KV_HEADS) * HEAD_DIM, device=device).bfloat16(),
            case.seq_lens - 1,
            case.table[:, last // BLOCK] * BLOCK + last % BLOCK,
            Rotation(torch.randn(case.keys, HEAD_DIM, device=device), *weights),
            torch.zeros(batch * KV_HEADS, dtype=torch.int32, device=device),
        )

    def in_one_kernel(self) -> Tensor:
        case, rotation = self.case, self.rotation
        return ops.decode_attention(
            self.qkv,
            case.cache,
            self.counters,
            self.positions,
            case.seq_lens,
            self.slots,
            case.table,
            HEAD_DIM**-0.5,
            rotation.cos_sin,
            rotation.q_weight,
            rotation.k_weight,
            early=True,
        )

    def rotate(self) -> None:
        sizes = (self.case.heads, KV_HEADS, HEAD_DIM)
        cache = self.case.cache
        rotate_in_one_pass(self.qkv, self.positions, self.slots, cache, self.rotation, *sizes)


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--rounds", type=int)
    flags.add_argument("--heads", type=int, default=16)
    arguments = flags.parse_args()
    rounds = arguments.rounds or (3 if arguments.quick else 10)
    device = the_gpu()
    attend = importlib.import_module(
        "rtp_llm.kernels.triton.attention.paged_attention"
    ).paged_attention
    bench = Bench(device, attend, rounds, arguments.heads)
    decoded = bench.decode(quick=arguments.quick)
    decoded.print()
    for more in (bench.prompts, bench.mixtures):
        report = more()
        report.print()
        decoded.rows += report.rows
    decoded.write(arguments.json)


class Bench:
    """Both tables of one shape on one GPU; `triton` is the attention in Triton."""

    def __init__(self, device: Device, triton: Attention, rounds: int, heads: int) -> None:
        self._device, self._triton = device, triton
        self._paged: dict[str, Attention] = {"operator": ops.paged_attention, "triton": triton}
        self._rounds, self._heads = rounds, heads
        half = torch.bfloat16
        self._config = AttentionConfig(
            device.capabilities(),
            half,
            half,
            heads,
            KV_HEADS,
            HEAD_DIM,
            BLOCK,
        )
        self._has_flashinfer = bool(FlashInferBackend.supports(self._config))

    def decode(self, *, quick: bool) -> Report:
        """One token of each sequence."""
        rate = copy_bandwidth(self._device, self._rounds)
        columns = ["batch", "context", "one kernel us", "TB/s", "% of copy", "triton us"]
        columns += ["rotation us"]
        if self._has_flashinfer:
            columns += ["flashinfer us", "with rotation / one kernel", "its plan us"]
        report = Report(
            f"Decode attention on {self._device.description()}, {self._heads} heads", tuple(columns)
        )
        report.notes.append(
            f"copies run at {rate / 1e12:.2f} TB/s; one kernel: norms, rotation and cache write "
            "included, which take the others another kernel (rotation)."
        )
        for context in CONTEXTS[: 3 if quick else 4]:
            for batch in BATCHES:
                case = self._case([(1, context)] * batch)
                report.add(batch=batch, context=context, **self._decode_row(case, rate))
        return report

    def _decode_row(self, case: Case, rate: float) -> dict[str, float]:
        layer = Layer.random(case, self._device.torch_device)
        ours, rotation = self._time(layer.in_one_kernel), self._time(layer.rotate)
        speed = case.cache.nbytes / ours * 1e6
        row = {
            "one kernel us": ours,
            "TB/s": speed / 1e12,
            "% of copy": 100 * speed / rate,
            "triton us": self._time(functools.partial(self._triton, *case.arguments())),
            "rotation us": rotation,
        }
        if self._has_flashinfer:
            planned = self._planned(case)
            taken = self._time(planned.run)
            row["flashinfer us"] = taken
            row["with rotation / one kernel"] = (taken + rotation) / ours
            row["its plan us"] = planned.plan_us
        return row

    def prompts(self) -> Report:
        """Measure whole prompts, and second halves of prompts whose first half is cached."""
        names = [*self._paged, *(["flashinfer"] if self._has_flashinfer else []), *SDPA]
        report = Report(
            f"Prompt attention on {self._device.description()}, {self._heads} heads",
            ("tokens", "cached", *(f"{name} TFLOP/s" for name in names), "% of best"),
        )
        report.notes.append(
            "operator: what the engine calls; SDPA: keys in one piece, whole prompts."
        )
        for tokens in PROMPTS:
            peers = dict(sdpa(self._device, tokens, self._heads, self._rounds))
            best = min(peers.values()) / self._operations([(tokens, tokens)])
            for cached in (0, tokens // 2):
                lengths = [(tokens - cached, tokens)]
                operations = self._operations(lengths)
                taken = self._paged_us(self._case(lengths)) | ({} if cached else peers)
                speeds = {f"{name} TFLOP/s": operations / us / 1e6 for name, us in taken.items()}
                share = 100 * best * operations / taken["operator"]
                report.add(tokens=tokens, cached=cached, **speeds, **{"% of best": share})
        return report

    def mixtures(self) -> Report:
        """Measure several prompts, chunks of long prompts, and prompts mixed with decodes."""
        names = [*self._paged, *(["flashinfer"] if self._has_flashinfer else [])]
        columns = ["batch", *(f"{name} us" for name in names), "operator TFLOP/s"]
        if self._has_flashinfer:
            columns += ["flashinfer / operator", "its plan us"]
        title = f"Mixed batches on {self._device.description()}, {self._heads} heads"
        report = Report(title, tuple(columns))
        for name, lengths in MIXTURES.items():
            case = self._case(lengths)
            taken = self._paged_us(case)
            row = {f"{kind} us": us for kind, us in taken.items()}
            row["operator TFLOP/s"] = self._operations(lengths) / taken["operator"] / 1e6
            if self._has_flashinfer:
                row["flashinfer / operator"] = taken["flashinfer"] / taken["operator"]
                row["its plan us"] = self._planned(case).plan_us
            report.add(batch=name, **row)
        return report

    def _case(self, lengths: Lengths) -> Case:
        return Case.random(lengths, self._device.torch_device, self._heads)

    def _operations(self, lengths: Lengths) -> float:
        pairs = sum(keys**2 - (keys - new) ** 2 for new, keys in lengths)  # twice those seen
        return 2.0 * pairs * self._heads * HEAD_DIM

    def _paged_us(self, case: Case) -> dict[str, float]:
        """Microseconds of each over the paged cache."""
        taken = {
            name: self._time(functools.partial(attend, *case.arguments()))
            for name, attend in self._paged.items()
        }
        if self._has_flashinfer:
            taken["flashinfer"] = self._time(self._planned(case).run)
        return taken

    def _planned(self, case: Case) -> Planned:
        return plan_flashinfer(
            self._device, self._config, case.q, case.cache, case.index(), case.queries
        )

    def _time(self, work: Callable[[], object]) -> float:
        return microseconds(self._device, work, self._rounds)


def sdpa(device: Device, tokens: int, heads: int, rounds: int) -> Iterator[tuple[str, float]]:
    """Microseconds of each of torch's backends on keys in one piece."""
    shape = (1, heads, tokens, HEAD_DIM)
    q, k, v = (torch.randn(shape, device=device.torch_device).bfloat16() for _ in range(3))
    attend = functools.partial(scaled_dot_product_attention, q, k, v, is_causal=True)
    for name, backend in SDPA.items():
        with sdpa_kernel(backend):
            yield name, microseconds(device, attend, rounds)


if __name__ == "__main__":
    main()
