# SPDX-License-Identifier: Apache-2.0
"""transformers on a GPU, with random weights that are made there: eager, or compiled."""

from __future__ import annotations

import itertools
import pathlib
import statistics
import time

import torch
import transformers
from torch import Tensor

from benchmark.generation import generate, prompts
from rtp_llm.device import Device


def random_model(folder: pathlib.Path, device: Device) -> transformers.PreTrainedModel:
    """The model of a folder's config in bfloat16; nothing is read or written."""
    transformers.logging.set_verbosity_error()
    config = transformers.AutoConfig.from_pretrained(folder)
    with device.torch_device:
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return model.eval()


class EagerTransformers:
    """``transformers.generate`` with its own cache."""

    def __init__(self, model: transformers.PreTrainedModel, device: Device, prompt: int) -> None:
        self._model, self._device, self._prompt = model, device, prompt

    def step_seconds(self, batch: int) -> float:
        """Mean time of a step, not counting the prompt."""
        size = self._model.config.vocab_size
        ids = torch.tensor(prompts(batch, self._prompt), device=self._device.torch_device) % size
        few, many = (self._seconds(ids, tokens) for tokens in (2, 34))
        return (many - few) / 32

    def _seconds(self, ids: Tensor, tokens: int) -> float:
        began = time.perf_counter()
        generate(self._model, ids, tokens)
        self._device.synchronize()
        return time.perf_counter() - began


class CompiledTransformers:
    """A decode step of ``transformers`` under torch.compile, with graphs and a static cache.

    Minutes pass while it compiles, for each size of batch.
    """

    def __init__(
        self, model: transformers.PreTrainedModel, device: Device, prompt: int, steps: int
    ) -> None:
        self._model, self._device = model, device
        self._prompt, self._steps = prompt, steps
        self._forward = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)

    def step_seconds(self, batch: int) -> float:
        """Median time of a step: the compiled forward pass and the choice of the best token."""
        place = self._device.torch_device
        size = self._model.config.vocab_size
        ids = torch.tensor(prompts(batch, self._prompt), device=place) % size
        cache = transformers.StaticCache(
            config=self._model.config, max_cache_len=self._prompt + self._steps + 1
        )
        times = []
        with torch.inference_mode():
            position = torch.arange(self._prompt, device=place)
            logits = self._model(
                ids, past_key_values=cache, cache_position=position, use_cache=True
            ).logits
            token = logits[:, -1:].argmax(-1)
            position = position[-1:] + 1
            for _ in range(self._steps):
                token = self._step(token.clone(), cache, position)
                position = position + 1
                self._device.synchronize()
                times.append(time.perf_counter())
        return statistics.median(b - a for a, b in itertools.pairwise(times))

    def _step(self, token: Tensor, cache: transformers.StaticCache, position: Tensor) -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        logits: Tensor = self._forward(
            token, past_key_values=cache, cache_position=position, use_cache=True
        ).logits
        return logits[:, -1:].argmax(-1)
