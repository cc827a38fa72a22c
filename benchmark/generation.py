# SPDX-License-Identifier: Apache-2.0
"""The contenders of the CPU benchmarks: this engine and transformers, on the same prompts."""

from __future__ import annotations

import itertools
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import TypeAlias

import torch
import transformers
from torch import Tensor

from rtp_llm.config.settings import Settings
from rtp_llm.engine.messages import AddRequest
from rtp_llm.engine.start.build import build_engine
from rtp_llm.request.sampling_params import SamplingParams

_VOCABULARY_IN_USE = 30000

# Seconds: time.perf_counter, or time.process_time where other work takes the cores.
Timer: TypeAlias = Callable[[], float]
CPU_TIME = (
    "measure the CPU time of all threads, for a machine that other work keeps busy; "
    "limits stay elapsed times, and llama.cpp is left out"
)


def prompts(batch: int, length: int) -> list[list[int]]:
    """Return prompts that share no prefix, the same on every call."""
    generator = torch.Generator().manual_seed(batch * 65536 + length)
    shape = (batch, length)
    numbers = torch.randint(1, _VOCABULARY_IN_USE, shape, generator=generator)
    return [list(map(int, row)) for row in numbers]


def generate(
    model: transformers.PreTrainedModel,
    ids: Tensor,
    tokens: int,
    *processors: transformers.LogitsProcessor,
) -> None:
    """Generate this many tokens after each row of ``ids``, greedily, with transformers."""
    with torch.inference_mode():
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            pad_token_id=0,
            logits_processor=[*processors],
        )


class OurEngine:
    """Our engine, running in this process."""

    def __init__(
        self,
        folder: pathlib.Path,
        dtype: str,
        quantization: str,
        threads: int,
        timer: Timer = time.perf_counter,
    ) -> None:
        settings = Settings(
            model=str(folder),
            dtype=dtype,
            quantization=quantization,
            num_threads=threads,
            kv_cache_mem_mb=1024,
            max_seq_len=4096,
            reuse_cache=False,
        )
        built = build_engine(settings)
        self._engine = built.engine
        self._numbers = itertools.count(1)
        self._timer = timer

    def _add(self, prompt: list[int], tokens: int) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        self._engine.add(
            AddRequest(request_id=next(self._numbers), prompt_token_ids=prompt, params=params)
        )

    def decode_seconds(self, batch: int, length: int, steps: int) -> float:
        """Median time of a step that decodes one token for each of ``batch`` sequences."""
        for prompt in prompts(batch, length):
            self._add(prompt, steps + 1)
        times = []
        while self._engine.has_work:
            began = self._timer()
            output = self._engine.step()[-1]
            if output.batch_tokens == batch:
                times.append(self._timer() - began)
        return statistics.median(times)

    def prefill_seconds(self, length: int) -> float:
        """Time to the first token of one prompt."""
        began = self._timer()
        self._add(prompts(1, length)[0], 1)
        while self._engine.has_work:
            self._engine.step()
        return self._timer() - began


class Transformers:
    """``transformers.generate`` with the weights of the same folder."""

    def __init__(self, folder: pathlib.Path, dtype: str, timer: Timer = time.perf_counter) -> None:
        self._timer = timer
        transformers.logging.set_verbosity_error()
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype)
        ).eval()

    def decode_seconds(self, batch: int, length: int, steps: int) -> float:
        """Median time of a step that decodes one token for each of ``batch`` sequences."""
        clock = _Clock(self._timer)
        generate(self._model, torch.tensor(prompts(batch, length)), steps + 1, clock)
        return statistics.median(b - a for a, b in itertools.pairwise(clock.times))

    def prefill_seconds(self, length: int) -> float:
        """Time to the first token of one prompt."""
        clock = _Clock(self._timer)
        ids = torch.tensor(prompts(1, length))
        began = self._timer()
        generate(self._model, ids, 1, clock)
        return clock.times[-1] - began


class _Clock(transformers.LogitsProcessor):
    """Records when the logits of each step are available."""

    def __init__(self, timer: Timer) -> None:
        self.times: list[float] = []
        self._timer = timer

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.times.append(self._timer())
        return scores
