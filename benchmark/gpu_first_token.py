# SPDX-License-Identifier: Apache-2.0
"""First token on a GPU: milliseconds from a long prompt to its first token, idle engine.

Nothing of the prompt is in the prefix cache; `--prefix` puts tokens before it that are. The limit:
the operations of the layers and of causal attention over the rate of bfloat16 matrix products,
measured in the same run, not counting the prefix; or the weights that the prompt reads over the
rate at which the device copies, if that takes longer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from benchmark.generation import prompts
from benchmark.gpu_engine import (
    CONTEXT,
    GpuEngine,
    add_flags,
    add_routing,
    given_settings,
    greedy,
)
from benchmark.gpu_limits import Rates, measure_rates
from benchmark.random_model import SHAPES, prompt_operations, weight_bytes
from benchmark.report import Report, parser
from benchmark.rounds import Figure, interleave
from rtp_llm.device import resolve_device

LENGTHS = (128, 2048, 16384)
COLUMNS = ("prompt", "ms", "spread ms", "tokens/s", "limit ms", "% of limit")


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    add_flags(flags)
    add_routing(flags)
    flags.add_argument("--length", type=int, action="append")
    flags.add_argument("--prefix", type=int, default=0, help="cached tokens before the prompt")
    arguments = flags.parse_args()
    rounds = arguments.rounds or (3 if arguments.quick else 7)
    device = resolve_device()
    lengths = arguments.length or LENGTHS
    own = {"kv_cache_mem_mb": 8 * 1024, "max_seq_len": CONTEXT}
    own["reuse_cache"] = arguments.prefix > 0
    print("building the engine ...", flush=True)
    changes = {**own, **given_settings(arguments)}
    engine = GpuEngine(arguments.shape, routes_evenly=arguments.uniform_routing, **changes)
    size = SHAPES[arguments.shape]["vocab_size"]
    report = Report(f"First token on {device.description()}, shape {arguments.shape}", COLUMNS)
    prompt_of = make_prompts(arguments.prefix, size)

    def first_token(length: int) -> float:
        engine.add([prompt_of(length)], greedy(1))
        return engine.seconds_to_end()

    figures = interleave({str(n): lambda n=n: first_token(n) for n in lengths}, rounds)  # type: ignore[misc]
    rates, ranks = measure_rates(device), changes.get("tensor_parallel_size", 1)
    for length in lengths:
        add_row(report, arguments.shape, length, figures[str(length)], rates, ranks)
    report.notes.append(f"products: {rates.products / 1e12:.0f} TFLOP/s; {rounds} rounds")
    report.print()
    report.write(arguments.json)


def add_row(
    report: Report, shape: str, length: int, figure: Figure, rates: Rates, ranks: int
) -> None:
    """Add a row; its limit counts one of `ranks`, and no operations of a prefix."""
    limit = rates.seconds(weight_bytes(shape, length), prompt_operations(shape, length)) / ranks
    report.add(
        **{
            "prompt": length,
            "ms": 1e3 * figure.median,
            "spread ms": tuple(1e3 * value for value in figure.spread),
            "tokens/s": length / figure.median,
            "limit ms": 1e3 * limit,
            "% of limit": 100 * limit / figure.median,
        }
    )


def make_prompts(prefix: int, vocabulary: int) -> Callable[[int], list[int]]:
    """Make prompts that share their first `prefix` tokens and differ from the next one on."""
    shared = prompts(1, prefix)[0] if prefix else []
    runs = itertools.count(1)

    def prompt_of(length: int) -> list[int]:
        own = [next(runs), *prompts(1, length)[0][1:]]
        return [token % vocabulary for token in (*shared, *own)]

    return prompt_of


if __name__ == "__main__":
    main()
