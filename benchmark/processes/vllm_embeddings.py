# SPDX-License-Identifier: Apache-2.0
"""vLLM's pooling in a process of its own: `python3 -P vllm_embeddings.py FOLDER LONGEST TOKENS`.

A line of JSON on standard input is [batch, length, repeats]; the answer is a line that begins with
`seconds`: the mean time of an `embed` call. LONGEST: tokens of a text; TOKENS: of a step.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from typing import Any

_FOR_OFFLINE_USE = {
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}


def main() -> None:
    for name, value in _FOR_OFFLINE_USE.items():
        os.environ.setdefault(name, value)
    from vllm import LLM, __version__  # type: ignore[import-not-found, unused-ignore]

    folder, longest, tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    engine = LLM(
        folder,
        runner="pooling",
        load_format="dummy",
        dtype="bfloat16",
        max_model_len=longest,
        gpu_memory_utilization=0.4,
        enable_prefix_caching=False,
        max_num_seqs=256,
        max_num_batched_tokens=tokens,
        seed=0,
    )
    print("ready", __version__, flush=True)
    for line in sys.stdin:
        print("seconds", _seconds(engine, *json.loads(line)), flush=True)


def _seconds(engine: Any, batch: int, length: int, repeats: int) -> float:
    chance = random.Random(0)
    ids = [[chance.randrange(1, 1000) for _ in range(length)] for _ in range(batch)]
    prompts = [{"prompt_token_ids": each} for each in ids]
    began = time.perf_counter()
    for _ in range(repeats):
        engine.embed(prompts, use_tqdm=False)
    return (time.perf_counter() - began) / repeats


if __name__ == "__main__":
    main()
