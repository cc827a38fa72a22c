# SPDX-License-Identifier: Apache-2.0
"""An engine that decodes on request: for each line of input it prints the seconds taken."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from itertools import count

from rtp_llm.config.settings import Settings
from rtp_llm.engine.engine import Engine
from rtp_llm.engine.messages import AddRequest
from rtp_llm.engine.start.build import build_engine
from rtp_llm.request.sampling_params import SamplingParams

_PROMPT = 20


def main(model: str, threads: str, requests: str, tokens: str) -> None:
    """`threads` 0: what the engine takes by itself."""
    settings = Settings(
        model=model, num_threads=int(threads) or None, kv_cache_mem_mb=64, reuse_cache=False
    )
    built = build_engine(settings)
    answers = sys.stdout
    answers.write(f"{built.ready.num_threads}\n")
    answers.flush()
    numbers = count(1)
    for _ in sys.stdin:
        answers.write(f"{_decode(built.engine, numbers, int(requests), int(tokens))}\n")
        answers.flush()


def _decode(engine: Engine, numbers: Iterator[int], requests: int, tokens: int) -> float:
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    for request in range(requests):
        prompt = [(7 * request + i) % 200 + 1 for i in range(_PROMPT)]
        engine.add(AddRequest(request_id=next(numbers), prompt_token_ids=prompt, params=params))
    began = time.perf_counter()
    while engine.has_work:
        engine.step()
    return time.perf_counter() - began


if __name__ == "__main__":
    main(*sys.argv[1:])
