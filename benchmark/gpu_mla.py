# SPDX-License-Identifier: Apache-2.0
"""MLA decode attention on a GPU, against both of its limits: bandwidth and compute.

DeepSeek-V3's sizes: --heads query heads over latents of 512 and keys of 64, bfloat16, blocks of 64
in random order. A step reads 1,152 bytes a key once; a head multiplies and adds 1,088 numbers with
it, so that from about 100 heads on an H200 the products take longer than the reading. Blocks are
others in each repetition where they would stay in the L2 cache.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmark.gpu_limits import Rates, measure_rates
from benchmark.gpu_time import microseconds, the_gpu
from benchmark.report import Report, parser
from rtp_llm.attention.factory import make_backend
from rtp_llm.attention.mla import MlaBackend, MlaConfig
from rtp_llm.attention.mla_step import ExpandedPart, MlaPart
from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.device import Device

LATENT, ROPE, NOPE, VALUE, BLOCK = 512, 64, 128, 128, 64
BATCHES, CONTEXTS = (1, 16, 64, 256), (1024, 8192, 65536)
PROMPTS = (2048, 8192)
_POOL_BYTES = 6 * 2**30


@dataclass(frozen=True)
class Bench:
    """One backend on one GPU, and what the GPU reaches in its own measurements."""

    device: Device
    backend: MlaBackend
    rounds: int
    rates: Rates

    @property
    def heads(self) -> int:
        return self.backend.config.num_heads

    def decode(self, batches: tuple[int, ...], contexts: tuple[int, ...]) -> Report:
        """One token of each sequence."""
        columns = (
            "batch",
            "context",
            "us",
            "TB/s",
            "TFLOP/s",
            "limit us",
            "limit by",
            "% of limit",
        )
        report = Report(f"MLA decode, {self.heads} heads, {self.backend.name}", columns)
        report.notes.append(
            f"copies run at {self.rates.copy / 1e12:.2f} TB/s, products of 8192 x 8192 at "
            f"{self.rates.products / 1e12:.0f} TFLOP/s; limit: the longer of both for the step"
        )
        pool = torch.empty(
            _POOL_BYTES // (BLOCK * 1152), BLOCK, LATENT + ROPE,
            dtype=torch.bfloat16, device=self.device.torch_device,
        ).normal_()  # fmt: skip
        for context in contexts:
            for batch in batches:
                report.add(batch=batch, context=context, **self._decode_row(pool, batch, context))
        return report

    def _decode_row(self, pool: Tensor, batch: int, context: int) -> dict[str, float | str]:
        place = self.device.torch_device
        q = torch.randn(batch, self.heads, LATENT + ROPE, device=place).bfloat16()
        parts = [_part(pool, batch, context) for _ in range(4 if batch * context < 2**19 else 1)]

        def work() -> None:
            for part in parts:
                self.backend.attend_latents(q, pool, part)

        taken = self._time(work) / len(parts)
        keys = batch * context
        read = keys * (LATENT + ROPE) * 2
        products = keys * self.heads * (2 * LATENT + ROPE) * 2
        limit = self.rates.seconds(read, products) * 1e6
        reading = read / self.rates.copy > products / self.rates.products
        return {
            "us": taken,
            "TB/s": read / taken / 1e6,
            "TFLOP/s": products / taken / 1e6,
            "limit us": limit,
            "limit by": "bytes" if reading else "products",
            "% of limit": 100 * limit / taken,
        }

    def prompts(self) -> Report:
        """Whole prompts in both forms, without the products that go with them."""
        columns = ("tokens", "expanded us", "TFLOP/s", "absorbed us")
        report = Report(f"MLA prompts, {self.heads} heads, {self.backend.name}", columns)
        for tokens in PROMPTS:
            report.add(tokens=tokens, **self._prompt_row(tokens))
        return report

    def _prompt_row(self, tokens: int) -> dict[str, float]:
        place, heads = self.device.torch_device, self.heads
        index = {"dtype": torch.int32, "device": place}
        cu_seqlens = torch.tensor([0, tokens], **index)
        table = torch.arange(tokens // BLOCK, **index).view(1, -1)
        part = MlaPart(None, cu_seqlens, cu_seqlens[1:], table, tokens, tokens)
        places = torch.arange(tokens, device=place)
        expanded = ExpandedPart(**vars(part), places=places, starts=cu_seqlens[:1])
        q = torch.randn(tokens, heads, NOPE + ROPE, device=place).bfloat16()
        keys = torch.randn(tokens, ROPE, device=place).bfloat16()
        own = torch.randn(tokens, heads, NOPE + VALUE, device=place).bfloat16()
        attend = functools.partial(self.backend.attend_heads, q, keys, own, expanded)
        taken = self._time(attend)
        wide = torch.randn(tokens, heads, LATENT + ROPE, device=place).bfloat16()
        cache = torch.randn(tokens // BLOCK, BLOCK, LATENT + ROPE, device=place).bfloat16()
        products = tokens * tokens * heads * (NOPE + ROPE + VALUE)
        return {
            "expanded us": taken,
            "TFLOP/s": products / taken / 1e6,
            "absorbed us": self._time(
                functools.partial(self.backend.attend_latents, wide, cache, part)
            ),
        }

    def _time(self, work: Callable[[], object]) -> float:
        return microseconds(self.device, work, self.rounds)


def _part(pool: Tensor, batch: int, context: int) -> MlaPart:
    """Sequences of one length in random blocks of the pool, which may share some."""
    blocks = torch.randint(len(pool), (batch, context // BLOCK), device=pool.device).int()
    index = {"dtype": torch.int32, "device": pool.device}
    cu_seqlens = torch.arange(batch + 1, **index)
    return MlaPart(None, cu_seqlens, torch.full((batch,), context, **index), blocks, 1, context)


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--rounds", type=int)
    flags.add_argument("--heads", type=int, default=128)
    flags.add_argument("--backend", default="auto", help="the setting attention_backend")
    arguments = flags.parse_args()
    rounds = arguments.rounds or (2 if arguments.quick else 5)
    device = the_gpu()
    half = torch.bfloat16
    config = MlaConfig(
        device.capabilities(), half, half, arguments.heads,
        LATENT, ROPE, NOPE, VALUE, 192**-0.5, BLOCK,
        settings=ModelSettings(attention_backend=arguments.backend),
    )  # fmt: skip
    backend = make_backend(config)
    assert isinstance(backend, MlaBackend)
    bench = Bench(device, backend, rounds, measure_rates(device))
    decoded = bench.decode(BATCHES, CONTEXTS[: 2 if arguments.quick else 3])
    decoded.print()
    prompted = bench.prompts()
    prompted.print()
    decoded.rows += prompted.rows
    decoded.write(arguments.json)


if __name__ == "__main__":
    main()
