# SPDX-License-Identifier: Apache-2.0
"""GEMMs of block-scaled FP8 on a GPU: swapped and not, against cuBLASLt and DeepGEMM in one run.

Replays of graphs over weights that rotate, so that the L2 cache holds none of them. Each result is
checked against float32 products of the dequantised operands before it is timed. The limit is the
time to read the weights, and q and to write the result, at a copy's rate.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from types import ModuleType

import torch
from torch import Tensor

from benchmark.gpu_time import captured, copy_bandwidth, the_gpu
from benchmark.report import Report, parser
from benchmark.rounds import interleave
from rtp_llm import ops
from rtp_llm.device import Device
from rtp_llm.ops.fp8 import fp8_blocks
from rtp_llm.ops.fp8.fp8_deep_gemm import masked_form

SHAPES = ((24576, 1536), (7168, 16384), (4096, 7168), (7168, 2048), (6144, 16384))
ROWS = (1, 8, 16, 32, 64, 128, 256, 1024, 4096)
GROUPS, GROUP_ROWS, CAPACITY = (8, 16, 64, 256), (8, 16, 32, 64, 128), 128
GROUPED_SHAPES = ((4096, 7168), (4096, 6144))
EXPERTS, EXPERT_SHAPES, EXPERT_ROWS = 128, ((1536, 2048), (2048, 768)), (32, 64, 128, 256, 512)
COLD_BYTES = 300 << 20  # of weights, several times the L2 cache
LIMIT = 2.5e-3  # relative error; rounding to bfloat16 alone is 1.7e-3
_COLUMNS = ("rows", "swapped_us", "straight_us", "chosen_us", "contiguous_us")
_PEERS = ("cublaslt_us", "deepgemm_us")
_REST = ("chosen/peer", "limit_us", "tb_per_s")


@dataclass(frozen=True)
class Operands:
    """Random q with its scales, and enough weights to keep the cache cold."""

    q: Tensor
    scales: Tensor
    weights: tuple[Tensor, ...]
    weight_scales: Tensor

    @staticmethod
    def random(rows: Sequence[int], weight: Sequence[int], device: torch.device) -> Operands:
        """q of shape `rows`, weights of shape `weight`."""
        x = torch.randn(*rows, device=device, dtype=torch.bfloat16)
        q, scales = ops.fp8_quantize(x)
        count = max(2, -(-COLD_BYTES // torch.Size(weight).numel()))
        first, weight_scales = _random_weight(weight, device)
        others = (_shuffled(first) for _ in range(count - 1))
        return Operands(q, scales, (first, *others), weight_scales)

    def rows_value(self) -> Tensor:
        """Dequantise the rows of q to float32."""
        scales = fp8_blocks.row_major(self.scales, self.q.shape[-2])
        return fp8_blocks.dequantize_rows(self.q, scales)


def _random_weight(shape: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    *outer, rows, columns = shape
    q = (torch.randn(rows, columns, device=device) * 60).clamp(-448, 448).to(fp8_blocks.E4M3)
    q = q.expand(*outer, rows, columns).contiguous()
    scales = torch.rand(*outer, rows // 128, columns // 128, device=device) * 0.01 + 0.001
    return q, scales


def _shuffled(weight: Tensor) -> Tensor:
    return weight.view(torch.uint8).roll(1, dims=-2).view(weight.dtype)


Product = Callable[[Tensor], Tensor]


class Timer:
    """Times products on one device; each is checked first."""

    def __init__(self, device: Device, rounds: int) -> None:
        self._device, self._rounds = device, rounds

    def __call__(
        self, ways: Mapping[str, Product | None], operands: Operands, expected: Tensor
    ) -> dict[str, float]:
        """Microseconds of each of the ways that there are: medians of rounds in which all take
        turns, as large products are as quick as the power of the GPU allows just then.

        Raises ValueError when one is wrong.
        """
        there = {name: product for name, product in ways.items() if product is not None}
        for name, product in there.items():
            actual = product(operands.weights[0])[..., : expected.shape[-2], :].float()
            error = float((actual - expected).norm() / expected.norm())
            if not error < LIMIT:
                raise ValueError(f"{name}: relative error {error}")
        replays = {name: self._replay(product, operands) for name, product in there.items()}
        return {name: each.median for name, each in interleave(replays, self._rounds).items()}

    def _replay(self, product: Product, operands: Operands) -> Callable[[], float]:
        weights = itertools.cycle(operands.weights)
        return captured(self._device, lambda: product(next(weights)))


def library_product(operands: Operands) -> Product | None:
    """cuBLASLt's product through torch, or None where it takes no such sizes."""

    def product(weight: Tensor) -> Tensor:
        return torch._scaled_mm(
            operands.q,
            weight.T,
            scale_a=operands.scales[:, : len(operands.q)].T,
            scale_b=operands.weight_scales.T,
            out_dtype=torch.bfloat16,
        )

    try:
        product(operands.weights[0])
    except (RuntimeError, ValueError):
        return None
    return product


def deep_gemm_product(
    operands: Operands, form: Callable[[ModuleType], Callable[..., None]], *rest: object
) -> Product | None:
    """Return DeepGEMM's product, called with `rest` after the result; None if not installed."""
    try:
        library = importlib.import_module("deep_gemm")
    except ImportError:
        return None
    multiply = form(library)
    *groups, rows, _ = operands.q.shape
    out = operands.q.new_empty((*groups, rows, operands.weights[0].shape[-2]), dtype=torch.bfloat16)
    x = (operands.q, operands.scales[..., :rows].mT)

    def product(weight: Tensor) -> Tensor:
        multiply(x, (weight, operands.weight_scales), out, *rest)
        return out

    return product


def linear_times(
    shape: tuple[int, int], rows: int, timer: Timer, device: Device
) -> dict[str, float]:
    """Microseconds of the plain form, by column."""
    operands = Operands.random((rows, shape[1]), shape, device.torch_device)
    weight = fp8_blocks.dequantize_weight(operands.weights[0], operands.weight_scales)
    expected = operands.rows_value() @ weight.T

    def own(weight: Tensor, swap_ab: bool | None) -> Tensor:
        return ops.fp8_linear(
            operands.q, operands.scales, weight, operands.weight_scales, swap_ab=swap_ab
        )

    ways = {
        "swapped_us": functools.partial(own, swap_ab=True) if rows <= 256 else None,
        "straight_us": functools.partial(own, swap_ab=False),
        "chosen_us": functools.partial(own, swap_ab=None),
        "cublaslt_us": library_product(operands),
        "deepgemm_us": deep_gemm_product(operands, attrgetter("fp8_gemm_nt")),
    }
    return timer(ways, operands, expected)


def masked_times(
    groups: int, shape: tuple[int, int], rows: int, timer: Timer, device: Device
) -> dict[str, float]:
    """Microseconds of the masked form, every group with so many rows."""
    operands = Operands.random((groups, CAPACITY, shape[1]), (groups, *shape), device.torch_device)
    masked_m = torch.full((groups,), rows, dtype=torch.int32, device=device.torch_device)
    value = operands.rows_value()[:, :rows]
    expected = torch.stack(
        [
            x @ fp8_blocks.dequantize_weight(weight, scales).T
            for x, weight, scales in zip(
                value, operands.weights[0], operands.weight_scales, strict=True
            )
        ]
    )

    def own(weight: Tensor, swap_ab: bool | None) -> Tensor:
        return ops.fp8_grouped_masked(
            operands.q,
            operands.scales,
            weight,
            operands.weight_scales,
            masked_m,
            rows,
            swap_ab=swap_ab,
        )

    ways = {
        "swapped_us": functools.partial(own, swap_ab=True),
        "straight_us": functools.partial(own, swap_ab=False),
        "chosen_us": functools.partial(own, swap_ab=None),
        "deepgemm_us": deep_gemm_product(operands, masked_form, masked_m, rows),
    }
    return timer(ways, operands, expected)


def ragged_times(
    shape: tuple[int, int], rows: int, timer: Timer, device: Device
) -> dict[str, float]:
    """Microseconds of experts with so many rows each, which lie one after the other.

    DeepGEMM, like our contiguous form, wants each expert's rows filled up to 128.
    """
    room, place = -(-rows // 128) * 128, device.torch_device
    operands = Operands.random((EXPERTS * room, shape[1]), (EXPERTS, *shape), place)
    counts = torch.full((EXPERTS,), rows, dtype=torch.int32, device=place)
    starts = torch.arange(EXPERTS + 1, dtype=torch.int32, device=place) * rows
    indices = torch.arange(EXPERTS, dtype=torch.int32, device=place).repeat_interleave(room)
    value = operands.rows_value()
    floats = fp8_blocks.dequantize_weight(operands.weights[0], operands.weight_scales)
    expected = torch.cat([x @ w.T for x, w in zip(value.split(room), floats, strict=True)])
    dense = torch.cat([x @ w.T for x, w in zip(value.split(rows), floats, strict=False)])

    def own(weight: Tensor, swap_ab: bool | None) -> Tensor:
        return ops.fp8_grouped_ragged(
            operands.q, operands.scales, weight, operands.weight_scales, starts, counts,
            rows, swap_ab=swap_ab,
        )  # fmt: skip

    def own_contiguous(weight: Tensor) -> Tensor:
        return ops.fp8_grouped_contiguous(
            operands.q, operands.scales, weight, operands.weight_scales, indices
        )

    ways = {"swapped_us": True, "straight_us": False, "chosen_us": None}
    dense_ways = {name: functools.partial(own, swap_ab=swap_ab) for name, swap_ab in ways.items()}
    contiguous_form = attrgetter("m_grouped_fp8_gemm_nt_contiguous")
    filled_ways = {
        "contiguous_us": own_contiguous,
        "deepgemm_us": deep_gemm_product(operands, contiguous_form, indices),
    }
    return timer(dense_ways, operands, dense) | timer(filled_ways, operands, expected)


def _add(
    report: Report, what: str, rows: int, times: dict[str, float], limits: tuple[int, float]
) -> None:
    num_bytes, copy = limits
    chosen, peers = times["chosen_us"], [times[peer] for peer in _PEERS if peer in times]
    rest = chosen / min(peers, default=math.nan), num_bytes / copy * 1e6, num_bytes / chosen / 1e6
    report.add(product=what, rows=rows, **times, **dict(zip(_REST, rest, strict=True)))


def main() -> None:
    """Plain and masked products in one table."""
    options = parser(__doc__ or "").parse_args()
    device = the_gpu()
    timer = Timer(device, 2 if options.quick else 3)
    copy = copy_bandwidth(device, 3)
    report = Report("GEMMs of block-scaled FP8", ("product", *_COLUMNS, *_PEERS, *_REST))
    report.notes.append(
        f"limit: at {copy / 1e12:.2f} TB/s, a copy's rate; peer: the better library"
    )
    for shape in SHAPES[2:4] if options.quick else SHAPES:
        for rows in ROWS[:4] if options.quick else ROWS:
            moved = shape[0] * shape[1] + rows * (shape[1] + 2 * shape[0])
            times = linear_times(shape, rows, timer, device)
            _add(report, f"{shape[0]} x {shape[1]}", rows, times, (moved, copy))
    for groups in GROUPS[:1] if options.quick else GROUPS:
        for shape in GROUPED_SHAPES if groups == 16 else GROUPED_SHAPES[:1]:
            for rows in GROUP_ROWS:
                moved = groups * (shape[0] * shape[1] + rows * (shape[1] + 2 * shape[0]))
                times = masked_times(groups, shape, rows, timer, device)
                _add(report, f"{groups} of {shape[0]} x {shape[1]}", rows, times, (moved, copy))
    for shape in EXPERT_SHAPES:
        for rows in EXPERT_ROWS[:1] if options.quick else EXPERT_ROWS:
            moved = EXPERTS * (shape[0] * shape[1] + rows * (shape[1] + 2 * shape[0]))
            times = ragged_times(shape, rows, timer, device)
            _add(report, f"{EXPERTS} ragged {shape[0]} x {shape[1]}", rows, times, (moved, copy))
    report.print()
    report.write(options.json)


if __name__ == "__main__":
    main()
