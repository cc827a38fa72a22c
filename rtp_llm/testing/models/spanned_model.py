# SPDX-License-Identifier: Apache-2.0
"""A small model that is fed embeddings and positions of three axes, and one with adapters.

Its text decoder is Qwen2-VL's: spanned_prompts.py asks transformers what it says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rtp_llm.attention.model_inputs import InputNeeds, ModelInputs
from rtp_llm.layers import Layer, RMSNorm, WeightTarget, weight_targets
from rtp_llm.models import registry
from rtp_llm.models.causal_lm import ModelOptions
from rtp_llm.models.config import Features, ModelConfig
from rtp_llm.models.decoder_layer import DecoderLayer
from rtp_llm.models.decoders.qwen2 import Qwen2ForCausalLM
from rtp_llm.models.raw_config import RawConfig
from rtp_llm.models.rope_config import read_mrope

NAME, ADAPTED = "SpannedForTests", "AdaptedForTests"
ADAPTERS = 3
FACTORY = f"{__name__}:make_worker"  # of the workers of other ranks
WIDTH, HEAD_DIM = 256, 64
SECTIONS = [8, 12, 12]


class SpannedForTests(Qwen2ForCausalLM):
    """Qwen2 with M-RoPE, which takes embeddings."""

    @classmethod
    def features(cls, raw: RawConfig) -> Features:
        mrope = read_mrope(raw, HEAD_DIM)
        return replace(super().features(raw), mrope=mrope, takes_embeddings=True)


class _Shifted(Layer):
    """Adds a vector of its own for each adapter to what a feed-forward layer gives."""

    def __init__(self, inner: Layer, inputs: ModelInputs) -> None:
        super().__init__()
        self.inner, self._inputs = inner, inputs
        shifts = torch.randn(ADAPTERS + 1, WIDTH, generator=torch.Generator().manual_seed(1))
        self._shifts = shifts.mul_(torch.arange(ADAPTERS + 1)[:, None])  # zeros for none

    def forward(self, norm: RMSNorm, residual: Tensor, pending: Tensor | None) -> Tensor | None:
        added: Tensor | None = self.inner(norm, residual, pending)
        residual.add_(self._shifts.index_select(0, self._inputs.token_adapters + 1))
        return added

    def checkpoint_targets(self, path: str) -> Iterator[tuple[str, WeightTarget]]:
        yield from weight_targets(self.inner, path)


class AdaptedForTests(SpannedForTests):
    """The same with adapters; slots from 0 to ``ADAPTERS`` - 1."""

    def __init__(self, config: ModelConfig, options: ModelOptions) -> None:
        super().__init__(config, options)
        for layer in self.model.layers:
            assert isinstance(layer, DecoderLayer)
            layer.mlp = _Shifted(layer.mlp, self.inputs)

    def _input_needs(self, config: ModelConfig) -> InputNeeds:
        return replace(super()._input_needs(config), adapters=True)


def register() -> None:
    """Let config.json name the models, in this process."""
    for name in (NAME, ADAPTED):
        row = registry.ModelRow(f"{__name__}:{name}", ("generate", "embed"))
        registry._ROWS[name] = row


def make_worker(*arguments: Any) -> Any:
    """The worker of another rank, in its process."""
    register()
    from rtp_llm.engine.start.rank_worker import make_worker as make

    return make(*arguments)
