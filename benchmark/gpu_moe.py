# SPDX-License-Identifier: Apache-2.0
"""One mixture of experts on a GPU: microseconds by tokens, against the time to read its weights.

Random weights and tokens; the layers and inputs of a measurement take turns, so that the cache
holds nothing. The limit counts only the experts that the tokens are routed to.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch

from benchmark.gpu_limits import Rates, measure_rates
from benchmark.gpu_time import microseconds
from benchmark.report import Report, parser
from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.device import Device, resolve_device
from rtp_llm.layers import LayerOptions, MoeBlock, MoeConfig

SHAPES = {
    "qwen3-30b-a3b": MoeConfig(2048, 128, 8, 768),
    "deepseek-v3": MoeConfig(
        7168, 256, 8, 2048, scoring="sigmoid", correction_bias=True, num_groups=8, top_groups=4,
        scaling=2.5,
    ),
    "tiny": MoeConfig(64, 8, 2, 64),
}  # fmt: skip
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096)
LAYERS = {"qwen3-30b-a3b": 4, "deepseek-v3": 1, "tiny": 2}
INPUTS = 4
COLUMNS = (
    "tokens",
    "experts hit",
    "routing us",
    "experts us",
    "block us",
    "limit us",
    "% of limit",
    "TFLOP/s",
)


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--shape", choices=SHAPES, default="qwen3-30b-a3b")
    flags.add_argument("--tokens", type=int, action="append")
    flags.add_argument("--quantization", choices=("none", "fp8"), default="none")
    flags.add_argument("--strategy", default="auto")
    arguments = flags.parse_args()
    device = resolve_device()
    settings = ModelSettings(
        dtype="bfloat16" if device.name != "cpu" else "float32",
        quantization=arguments.quantization,
        moe_strategy=arguments.strategy,
    )
    options = LayerOptions(
        settings,
        device.torch_device,
        capabilities=device.capabilities(),
        fp8_products=bool(device.supports("fp8_products")),
    )
    blocks = make_blocks(arguments.shape, options)
    name = blocks[0].executor.name
    title = f"{arguments.shape}, {name} executor on {device.description()}"
    report = Report(title, COLUMNS)
    rates = measure_rates(device)
    rounds = 3 if arguments.quick else 10
    with torch.inference_mode():
        for tokens in arguments.tokens or TOKENS:
            report.add(**row(device, rates, blocks, tokens, rounds))
    report.notes.append(f"copies at {rates.copy / 1e12:.2f} TB/s; {rounds} replays, the quickest")
    report.print()
    report.write(arguments.json)


def make_blocks(shape: str, options: LayerOptions) -> list[MoeBlock]:
    """Create MoE blocks with random weights, enough of them to keep the cache cold."""
    blocks = [MoeBlock(index, SHAPES[shape], options) for index in range(LAYERS[shape])]
    for block in blocks:
        for parameter in block.parameters():
            if parameter.dtype.itemsize == 1:  # e4m3: any bits but those of infinities and NaN
                parameter.data.view(torch.uint8).random_(0, 120)
            else:
                parameter.data.normal_(std=0.02)
    return blocks


def row(
    device: Device, rates: Rates, blocks: list[MoeBlock], tokens: int, rounds: int
) -> dict[str, object]:
    """The figures for so many tokens."""
    config, like = blocks[0].config, blocks[0].gate.weight
    inputs = [torch.randn(tokens, config.hidden_size).to(like) for _ in range(INPUTS)]
    pairs = [(blocks[turn % len(blocks)], x) for turn, x in enumerate(inputs)]
    routed = [(block, x, *block.gate(x)) for block, x in pairs]
    hit = sum(len(ids.unique()) for _, _, ids, _ in routed) / len(routed)

    def turns(work: Callable[..., object], items: list[tuple[object, ...]]) -> float:
        turn = itertools.cycle(items)
        return time_of(device, lambda: work(*next(turn)), rounds)

    routing = turns(lambda block, x: block.gate(x), pairs)
    experts = turns(lambda block, x, ids, weights: block.route(x, ids, weights), routed)
    whole = turns(lambda block, x: block.route(x, *block.gate(x)), pairs)
    expert = blocks[0].experts
    bytes_read = hit * sum(w.weight[0].nbytes for w in (expert.gate_up, expert.down))
    moved = bytes_read + blocks[0].gate.weight.nbytes + 2 * inputs[0].nbytes
    operations = 6.0 * tokens * config.top_k * config.hidden_size * config.intermediate_size
    limit = 1e6 * rates.seconds(moved, operations)
    return {
        "tokens": tokens,
        "experts hit": hit,
        "routing us": routing,
        "experts us": experts,
        "block us": whole,
        "limit us": limit,
        "% of limit": 100 * limit / whole,
        "TFLOP/s": operations / whole / 1e6,
    }


def time_of(device: Device, work: Callable[[], object], rounds: int) -> float:
    """Microseconds of the work; on the CPU rough ones, so that the benchmark can be tried there."""
    if device.supports("graph_capture"):
        return microseconds(device, work, rounds)
    from timeit import timeit

    return 1e6 * timeit(work, number=1)


if __name__ == "__main__":
    main()
