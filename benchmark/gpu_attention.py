"""Paged attention on a GPU: decode against the copy rate, prompts beside torch's SDPA backends.

Shape of Qwen3-0.6B: 16 query heads over 8 KV heads of 128, bfloat16, blocks of 16 in random order.
A decode step must read every key and value once; a prompt's limit is what the best backend reaches,
which reads keys and values that lie in one piece.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmark.gpu_time import copy_bandwidth, microseconds, the_gpu
from benchmark.report import Report, parser
from rtp_llm import ops
from rtp_llm.attention.rotation import Rotation, rotate_in_one_pass
from rtp_llm.device import Device

HEADS, KV_HEADS, HEAD_DIM, BLOCK = 16, 8, 128, 16
BATCHES, CONTEXTS = (1, 16, 64, 256), (192, 1024, 8192, 65536)
PROMPTS = (2048, 8192, 32768)
Attention = Callable[..., Tensor]
SDPA = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


@dataclass(frozen=True)
class Case:
    """Sequences of one length, the last ``queries`` tokens of each new."""

    q: Tensor
    cache: Tensor
    cu_seqlens: Tensor
    seq_lens: Tensor
    table: Tensor
    queries: int
    keys: int

    @staticmethod
    def random(batch: int, queries: int, keys: int, device: torch.device) -> Case:
        blocks = keys // BLOCK
        shape = (2, batch * blocks, BLOCK, KV_HEADS, HEAD_DIM)
        tokens = batch * queries
        return Case(
            torch.randn(tokens, HEADS, HEAD_DIM, device=device).bfloat16(),
            torch.empty(shape, dtype=torch.bfloat16, device=device).normal_(),
            queries * torch.arange(batch + 1, dtype=torch.int32, device=device),
            torch.full((batch,), keys, dtype=torch.int32, device=device),
            torch.randperm(batch * blocks, device=device).int().view(batch, blocks),
            queries,
            keys,
        )

    def arguments(self) -> tuple[Tensor | int | float, ...]:
        index = (self.cu_seqlens, self.seq_lens, self.table)
        return (self.q, self.cache, *index, self.queries, self.keys, HEAD_DIM**-0.5)


@dataclass(frozen=True)
class Layer:
    """What a decode step of the case has besides: the projection, places, a table, norms."""

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
            torch.randn(batch, (HEADS + 2 * KV_HEADS) * HEAD_DIM, device=device).bfloat16(),
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
        sizes = (HEADS, KV_HEADS, HEAD_DIM)
        cache = self.case.cache
        rotate_in_one_pass(self.qkv, self.positions, self.slots, cache, self.rotation, *sizes)


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--rounds", type=int)
    arguments = flags.parse_args()
    rounds = arguments.rounds or (3 if arguments.quick else 10)
    device = the_gpu()
    attend = importlib.import_module("rtp_llm.kernels.triton.paged_attention").paged_attention
    decoded = decode(device, attend, rounds, quick=arguments.quick)
    decoded.print()
    prompted = prompts(device, attend, rounds)
    prompted.print()
    decoded.rows += prompted.rows
    decoded.write(arguments.json)


def decode(device: Device, attend: Attention, rounds: int, *, quick: bool) -> Report:
    """One token of each sequence."""
    rate = copy_bandwidth(device, rounds)
    columns = ("batch", "context", "one kernel us", "TB/s", "% of copy", "triton us", "rotation us")
    report = Report(f"Decode attention on {device.description()}", columns)
    report.notes.append(
        f"copies run at {rate / 1e12:.2f} TB/s; one kernel: norms, rotation and cache write "
        "included, which take Triton another kernel (rotation)."
    )
    for context in CONTEXTS[: 3 if quick else 4]:
        for batch in BATCHES:
            case = Case.random(batch, 1, context, device.torch_device)
            report.add(
                batch=batch, context=context, **_decode_row(case, device, attend, rounds, rate)
            )
    return report


def _decode_row(
    case: Case, device: Device, attend: Attention, rounds: int, rate: float
) -> dict[str, float]:
    layer = Layer.random(case, device.torch_device)
    ours = microseconds(device, layer.in_one_kernel, rounds)
    apart = microseconds(device, functools.partial(attend, *case.arguments()), rounds)
    speed = case.cache.nbytes / ours * 1e6
    return {
        "one kernel us": ours,
        "TB/s": speed / 1e12,
        "% of copy": 100 * speed / rate,
        "triton us": apart,
        "rotation us": microseconds(device, layer.rotate, rounds),
    }


def prompts(device: Device, triton: Attention, rounds: int) -> Report:
    """A whole prompt at once, and its second half after the first came from the prefix cache."""
    ours: dict[str, Attention] = {"operator": ops.paged_attention, "triton": triton}
    report = Report(
        f"Prompt attention on {device.description()}",
        ("tokens", "cached", *(f"{name} TFLOP/s" for name in (*ours, *SDPA)), "% of best"),
    )
    report.notes.append("operator: what the engine calls; SDPA: keys in one piece, whole prompts.")
    for tokens in PROMPTS:
        for cached in (0, tokens // 2):
            new = tokens - cached
            operations = 2.0 * (tokens**2 - cached**2) * HEADS * HEAD_DIM  # half of new pairs
            arguments = Case.random(1, new, tokens, device.torch_device).arguments()
            taken = {
                name: microseconds(device, functools.partial(attend, *arguments), rounds)
                for name, attend in ours.items()
            }
            if not cached:
                taken.update(sdpa(device, tokens, rounds))
                best = min(taken[name] for name in SDPA) / operations
            speeds = {f"{name} TFLOP/s": operations / us / 1e6 for name, us in taken.items()}
            share = 100 * best * operations / taken["operator"]
            report.add(tokens=tokens, cached=cached, **speeds, **{"% of best": share})
    return report


def sdpa(device: Device, tokens: int, rounds: int) -> Iterator[tuple[str, float]]:
    """Microseconds of each of torch's backends on keys in one piece."""
    shape = (1, HEADS, tokens, HEAD_DIM)
    q, k, v = (torch.randn(shape, device=device.torch_device).bfloat16() for _ in range(3))
    attend = functools.partial(scaled_dot_product_attention, q, k, v, is_causal=True)
    for name, backend in SDPA.items():
        with sdpa_kernel(backend):
            yield name, microseconds(device, attend, rounds)


if __name__ == "__main__":
    main()
