# SPDX-License-Identifier: Apache-2.0
"""`rtp-llm bench latency` and `throughput`: the engine in this process, without a server."""

from __future__ import annotations

import argparse
import json
import random
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from rtp_llm.bench.samples import file_samples, random_lengths
from rtp_llm.bench.texts import TokenizerTexts
from rtp_llm.config.settings import Settings
from rtp_llm.llm import LLM
from rtp_llm.offline.prompts import Prompt
from rtp_llm.request.sampling_params import SamplingParams
from rtp_llm.terminal.terminal_bar import TerminalBar

_PERCENTILES = (10, 25, 50, 75, 90, 99)


class LengthError(ValueError):
    """The requested lengths do not fit into the model's context."""


def load(settings: Settings) -> LLM:
    """Start the engine with the given settings."""
    given = asdict(settings)
    return LLM(given.pop("model"), **given)


def measure_latency(arguments: argparse.Namespace, settings: Settings) -> int:
    """Time a batch of random prompts repeatedly; prints and saves like `vllm bench latency`.

    Raises:
        LengthError: prompt and answer together exceed the context.
    """
    with load(settings) as llm:
        _check(llm, arguments.input_len + arguments.output_len)
        llm.prepare()
        source = random.Random(arguments.seed)
        prompts: list[Prompt] = [
            _random_ids(llm, source, arguments.input_len) for _ in range(arguments.batch_size)
        ]
        params = _params(arguments.output_len, arguments.n)
        _time_rounds(llm, prompts, params, arguments.num_iters_warmup, "warming up")
        seconds = _time_rounds(llm, prompts, params, arguments.num_iters, "measuring")
    found = np.array(seconds)
    percentiles = {str(each): float(np.percentile(found, each)) for each in _PERCENTILES}
    print(f"Avg latency: {found.mean()} seconds")
    print(f"Std latency: {found.std()} seconds")
    for each, value in percentiles.items():
        print(f"{each}% percentile latency: {value} seconds")
    result = {
        "avg_latency": float(found.mean()),
        "std_latency": float(found.std()),
        "latencies": seconds,
        "percentiles": percentiles,
    }
    _write(arguments.output_json, result)
    return 0


def _time_rounds(
    llm: LLM, prompts: list[Prompt], params: SamplingParams, rounds: int, words: str
) -> list[float]:
    bar, seconds = TerminalBar(), []
    for number in range(rounds):
        bar.draw(words, number, rounds, f"{number}/{rounds}")
        began = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        seconds.append(time.perf_counter() - began)
    bar.erase()
    return seconds


def measure_throughput(arguments: argparse.Namespace, settings: Settings) -> int:
    """Submit all requests to the engine at once; prints and saves like `vllm bench throughput`.

    Raises:
        LengthError: a request exceeds the context.
        DatasetError: the file of the data set cannot be used.
    """
    with load(settings) as llm:
        prompts, outputs = _requests(arguments, llm)
        llm.prepare()
        began = time.perf_counter()
        answers = llm.generate(
            prompts,
            [_params(tokens, arguments.n) for tokens in outputs],
            use_tqdm=not arguments.disable_tqdm,
        )
        seconds = time.perf_counter() - began
    prompt = sum(len(answer.prompt_token_ids) for answer in answers)
    output = sum(len(each.token_ids) for answer in answers for each in answer.outputs)
    print(
        f"Throughput: {len(answers) / seconds:.2f} requests/s, "
        f"{(prompt + output) / seconds:.2f} total tokens/s, {output / seconds:.2f} output tokens/s"
    )
    print(f"Total num prompt tokens:  {prompt}\nTotal num output tokens:  {output}")
    result = {
        "elapsed_time": seconds,
        "num_requests": len(answers),
        "total_num_tokens": prompt + output,
        "requests_per_second": len(answers) / seconds,
        "tokens_per_second": (prompt + output) / seconds,
    }
    _write(arguments.output_json, result)
    return 0


def _requests(arguments: argparse.Namespace, llm: LLM) -> tuple[list[Prompt], list[int]]:
    """The prompts, and the number of tokens of each answer."""
    count, seed = arguments.num_prompts, arguments.seed
    if arguments.dataset_name == "random":
        source = random.Random(seed)
        lengths = random_lengths(arguments)
        drawn = [lengths.draw(source) for _ in range(count)]
        _check(llm, max(sum(each) for each in drawn) + lengths.prefix)
        prefix = _random_ids(llm, source, lengths.prefix)
        prompts: list[Prompt] = [[*prefix, *_random_ids(llm, source, n)] for n, _ in drawn]
        return prompts, [output for _, output in drawn]
    samples = file_samples(arguments, TokenizerTexts(llm.tokenizer))
    _check(llm, max(each.prompt_tokens + each.output_tokens for each in samples))
    return [each.prompt for each in samples], [each.output_tokens for each in samples]


def _check(llm: LLM, tokens: int) -> None:
    if tokens > llm.ready.max_model_len:
        raise LengthError(
            f"a request of {tokens} tokens is longer than the context of "
            f"{llm.ready.max_model_len}; make --input-len or --output-len smaller"
        )


def _random_ids(llm: LLM, source: random.Random, count: int) -> list[int]:
    return [source.randrange(llm.ready.vocab_size) for _ in range(count)]


def _params(tokens: int, n: int) -> SamplingParams:
    return SamplingParams(n=n, temperature=1.0, top_p=1.0, ignore_eos=True, max_tokens=tokens)


def _write(path: str | None, result: dict[str, Any]) -> None:
    if path is not None:
        Path(path).write_text(json.dumps(result, indent=4) + "\n")
