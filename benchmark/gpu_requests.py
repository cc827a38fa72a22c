# SPDX-License-Identifier: Apache-2.0
"""Requests for offline throughput, drawn as in nano-vllm's bench.py, and a function to run them."""

from __future__ import annotations

import random
import time

from rtp_llm import LLM, SamplingParams

REQUESTS, SHORTEST, LONGEST, VOCABULARY = 256, 100, 1024, 10000


def workload(requests: int, longest: int) -> tuple[list[list[int]], list[int]]:
    """Prompts of token ids, and how many tokens each answer has."""
    source = random.Random(0)
    prompts = [
        [source.randint(0, VOCABULARY) for _ in range(source.randint(SHORTEST, longest))]
        for _ in range(requests)
    ]
    return prompts, [source.randint(SHORTEST, longest) for _ in range(requests)]


def generate(llm: LLM, prompts: list[list[int]], answers: list[int]) -> float:
    """Wall time of all requests, from the call to the last text."""
    params = [SamplingParams(temperature=0.6, ignore_eos=True, max_tokens=n) for n in answers]
    size = llm.ready.vocab_size
    fitting = [[token % size for token in prompt] for prompt in prompts]  # of a tiny shape
    began = time.perf_counter()
    outputs = llm.generate(fitting, params, use_tqdm=False)
    seconds = time.perf_counter() - began
    if [len(output.outputs[0].token_ids) for output in outputs] != answers:
        raise SystemExit("an answer was not whole")
    return seconds
