# SPDX-License-Identifier: Apache-2.0
"""Offline throughput on a GPU: 256 random requests of nano-vllm's workload, output tokens/s.

Prompts and answers of 100 to 1024 tokens each, drawn with Python's random from seed 0 as its
bench.py does (133,966 output tokens), temperature 0.6, end-of-text ignored, through LLM.generate.
The limit: keys and values and weights read once a step at the copy rate, prompts at the rate of
matrix products.
"""

from __future__ import annotations

import argparse
import dataclasses

from benchmark.gpu_engine import add_flags, given_settings, settings_for
from benchmark.gpu_limits import Rates, measure_rates
from benchmark.gpu_requests import LONGEST, REQUESTS, generate, workload
from benchmark.random_model import cache_bytes, prompt_operations, weight_bytes
from benchmark.report import Report, parser
from benchmark.rounds import interleave
from benchmark.server_process import write_tokenizer
from rtp_llm import LLM
from rtp_llm.config.settings import Settings
from rtp_llm.device import resolve_device

FLOOR, GOAL = 23000, 30000
COLUMNS = (
    "requests",
    "prompt tokens",
    "output tokens",
    "seconds",
    "spread",
    "output tokens/s",
    "limit tokens/s",
    "% of limit",
)


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    add_flags(flags)
    flags.add_argument("--requests", type=int, default=REQUESTS)
    flags.add_argument("--longest", type=int, default=LONGEST)
    arguments = flags.parse_args()
    rounds = arguments.rounds or (1 if arguments.quick else 3)
    device = resolve_device()
    prompts, answers = workload(arguments.requests, arguments.longest)
    settings = make_settings(arguments)
    print(f"{settings}\nbuilding the engine ...", flush=True)
    report = Report(f"Offline throughput on {device.description()}, {arguments.shape}", COLUMNS)
    fields = dataclasses.asdict(settings)
    with LLM(fields.pop("model"), **fields) as llm:
        llm.prepare()

        def run() -> float:
            seconds = generate(llm, prompts, answers)
            print(f"{sum(answers) / seconds:.0f} output tokens/s", flush=True)
            return seconds

        figure = interleave({"ours": run}, rounds)["ours"]
    limit = limit_seconds(arguments.shape, prompts, answers, measure_rates(device))
    report.add(
        **{
            "requests": len(prompts),
            "prompt tokens": sum(map(len, prompts)),
            "output tokens": sum(answers),
            "seconds": figure.median,
            "spread": figure.spread,
            "output tokens/s": sum(answers) / figure.median,
            "limit tokens/s": sum(answers) / limit,
            "% of limit": 100 * limit / figure.median,
        }
    )
    report.notes.append(f"floor {FLOOR}, goal {GOAL} output tokens/s (shape qwen3-0.6b, one H200)")
    report.print()
    report.write(arguments.json)


def make_settings(arguments: argparse.Namespace) -> Settings:
    """All requests run at once and their keys and values fit; the folder has a tokenizer."""
    own = {
        "kv_cache_mem_mb": 48 * 1024,
        "max_seq_len": 4096,
        "max_batch_tokens_size": 16384,
        "max_running_requests": max(REQUESTS, arguments.requests),
    }
    settings = settings_for(arguments.shape, **{**own, **given_settings(arguments)})
    write_tokenizer(settings.model, arguments.shape)
    return settings


def limit_seconds(shape: str, prompts: list[list[int]], answers: list[int], rates: Rates) -> float:
    """Lower bound: bytes that decoding reads plus operations of the prompts, not overlapped."""
    contexts = sum(
        len(prompt) * count + count * (count - 1) / 2
        for prompt, count in zip(prompts, answers, strict=True)
    )
    num_bytes = cache_bytes(shape, contexts) + max(answers) * weight_bytes(shape)
    operations = sum(prompt_operations(shape, len(prompt)) for prompt in prompts)
    return num_bytes / rates.copy + operations / rates.products


if __name__ == "__main__":
    main()
