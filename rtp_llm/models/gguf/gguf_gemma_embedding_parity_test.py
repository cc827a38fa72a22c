# SPDX-License-Identifier: Apache-2.0
"""EmbeddingGemma in GGUF files against transformers' with the same weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import normalize

from rtp_llm.request.params import PoolingParams
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.gguf.models import save_gguf
from rtp_llm.testing.models.encoder_models import expected_states, save_encoder
from rtp_llm.testing.models.transformers_models import random_prompt

_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "head_dim": 16,
    "query_pre_attn_scalar": 16,
    "attention_bias": False,
}


class _Model:
    """Its weights with the names of a decoder's, and layers that follow pooling."""

    def __init__(self, model: Any, dense: dict[str, torch.Tensor]) -> None:
        self.config, self._model, self._dense = model.config, model, dense

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        yield from ((f"model.{name}", each) for name, each in self._model.named_parameters())
        yield from self._dense.items()

    def named_buffers(self) -> Iterator[tuple[str, Any]]:
        return iter(())


@pytest.mark.parametrize("kinds", ["F32", "Q8_0"])
@pytest.mark.parametrize("dense", [False, True])
def test_vectors(tmp_path: Path, kinds: str, dense: bool) -> None:
    reference = save_encoder(tmp_path, "gemma3", **_SIZES)
    raw = json.loads((tmp_path / "config.json").read_text())
    pattern = [kind == "sliding_attention" for kind in reference.config.layer_types]
    more = {
        "gemma-embedding.attention.sliding_window": raw["sliding_window"],
        "gemma-embedding.attention.sliding_window_pattern": pattern,
        "gemma-embedding.attention.causal": False,
        "gemma-embedding.pooling_type": 1,
    }
    layers = [torch.nn.Linear(64, 128, bias=False), torch.nn.Linear(128, 64, bias=False)]
    named = {f"dense_{number + 2}.weight": each.weight for number, each in enumerate(layers)}
    model = _Model(reference, named if dense else {})
    (file,) = save_gguf(tmp_path / "tiny.gguf", model, "gemma-embedding", kinds, more=more)
    engine = TinyEngine(file, gguf_activations="float")
    assert engine.ready.tasks == ("embed",)
    assert engine.ready.pooling == PoolingParams(pooling_type="mean", normalize=True)
    prompts = [random_prompt(n, seed=n) for n in (1, 40, 90)]
    requests = [engine.add_request(prompt, engine.ready.pooling) for prompt in prompts]
    engine.run()
    for request, prompt in zip(requests, prompts, strict=True):
        wanted = expected_states(reference, prompt).mean(0)
        if dense:
            wanted = torch.nn.Sequential(*layers)(wanted).detach()
        found = torch.tensor(engine.outcomes[request, 0].pooled)
        torch.testing.assert_close(found, normalize(wanted, dim=0), rtol=1e-4, atol=1e-4)
