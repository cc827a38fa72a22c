# SPDX-License-Identifier: Apache-2.0
"""A model that mixes full attention, a window and a toy linear attention: three cache groups."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from rtp_llm.attention import (
    Backend,
    BackendOptions,
    CacheDtypes,
    CacheSpec,
    ForwardBatch,
    RecurrentSpec,
)
from rtp_llm.distributed.tensor_parallel import TensorParallel
from rtp_llm.layers import (
    DivisionError,
    LayerOptions,
    Mixer,
    MixerShape,
    RMSNorm,
    make_linear,
)
from rtp_llm.models import registry
from rtp_llm.models.causal_lm import CausalLM
from rtp_llm.models.config import Features, ModelConfig
from rtp_llm.models.decoder import DecoderForCausalLM
from rtp_llm.models.raw_config import RawConfig
from rtp_llm.worker.cache.kv_cache import KVCache

ARCHITECTURE = "HybridToyForCausalLM"
WINDOW = 9
RECURRENT_LAYERS = (1, 3)
_CONFIG = {
    "architectures": [ARCHITECTURE],
    "model_type": "llama",
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "dtype": "float32",
    "bos_token_id": None,
    "eos_token_id": None,
}


@dataclass(frozen=True)
class ToyShape:
    """`heads` states of `dim` x `dim`, and the last token's keys."""

    hidden: int
    heads: int
    dim: int

    checkpoint_name: ClassVar[str] = "linear_attn"

    def on_rank(self, ranks: TensorParallel) -> ToyShape:
        raise DivisionError("states of a toy are not divided")

    def cache_spec(self, dtypes: CacheDtypes) -> CacheSpec:
        sizes = (self.heads, self.dim, self.dim), (self.heads, self.dim)
        return RecurrentSpec(sizes, (torch.float32, torch.float32))

    def backend_config(self, options: BackendOptions) -> None:
        return None

    def make(self, index: int, backend: Backend[Any] | None, options: LayerOptions) -> Mixer:
        return ToyLinearAttention(index, self, options)


class ToyLinearAttention(Mixer):
    """S <- decay * S + (k + k of the token before) v^T; the output is S^T q, normalised.

    Token by token, so that chunks change no bit; nothing is read from the device.
    """

    def __init__(self, index: int, shape: ToyShape, options: LayerOptions) -> None:
        super().__init__()
        self.index, self.shape = index, shape
        inner = shape.heads * shape.dim
        parts = {"q_proj": inner, "k_proj": inner, "v_proj": inner, "g_proj": shape.heads}
        self.in_proj = make_linear(shape.hidden, parts, False, options)
        self.o_proj = make_linear(inner, {"o_proj": shape.hidden}, False, options)

    def cache_spec(self) -> CacheSpec:
        return self.shape.cache_spec(CacheDtypes(torch.float32, torch.float32))

    def forward(
        self,
        norm: RMSNorm,
        residual: Tensor,
        pending: Tensor | None,
        cos_sin: Tensor | None,
        batch: ForwardBatch,
    ) -> Tensor | None:
        shape, group = self.shape, batch.layer_group[self.index]
        projected = self.in_proj.normed(norm, residual, pending)
        sizes = [shape.heads * shape.dim] * 3 + [shape.heads]
        q, k, v, gate = torch.split(projected, sizes, dim=1)
        q, k, v = (each.reshape(len(projected), shape.heads, -1) for each in (q, k, v))
        batch.wait_for_layer(self.index)
        memory, last_keys = batch.states[self.index]
        state, before = (self._read(each, batch, group) for each in (memory, last_keys))
        decay = gate.sigmoid()[:, :, None, None]
        places = torch.arange(len(q), dtype=torch.int32, device=q.device)
        # Tokens past the last sequence (padding in graphs) belong to an extra, dummy sequence.
        sequence = torch.bucketize(places, batch.cu_seqlens_q[1:], right=True)
        out = torch.empty_like(q)
        for token, mine in enumerate(torch.split(sequence, 1)):
            keys = (k[token] + before.index_select(0, mine)[0])[:, :, None]
            updated = decay[token] * state.index_select(0, mine)[0] + keys * v[token][:, None]
            state.index_copy_(0, mine, updated[None])
            before.index_copy_(0, mine, k[token][None])
            out[token] = (updated * q[token][:, :, None]).sum(1)
        write = batch.state_write[group].long()
        memory[write], last_keys[write] = state[:-1], before[:-1]
        batch.layer_written(self.index)
        out = out * torch.rsqrt(out.square().mean(2, keepdim=True) + 1e-12)
        return self.o_proj.add_to(residual, out.flatten(1))

    @staticmethod
    def _read(memory: Tensor, batch: ForwardBatch, group: int) -> Tensor:
        """The states that sequences go on from, and room for one that is not there."""
        read = batch.state_read[group]
        found = memory[read.clamp(min=0).long()]
        begins = (read < 0).view(-1, *[1] * (found.dim() - 1))
        found = found.masked_fill(begins, 0.0)
        return torch.cat([found, torch.zeros_like(memory[:1])])


class HybridToyForCausalLM(DecoderForCausalLM):
    """Layers: full, recurrent, window, recurrent, full."""

    @classmethod
    def features(cls, raw: RawConfig) -> Features:
        return Features(layer_windows=(0, 0, WINDOW, 0, 0))

    @classmethod
    def mixers(cls, config: ModelConfig) -> tuple[MixerShape, ...]:
        toy = ToyShape(config.hidden_size, heads=2, dim=8)
        return tuple(
            toy if index in RECURRENT_LAYERS else mixer
            for index, mixer in enumerate(super().mixers(config))
        )


@contextmanager
def hybrid_model(folder: Path) -> Iterator[None]:
    """Inside, `folder` holds such a model, without weights: engines need load_format "dummy"."""
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    with pytest.MonkeyPatch.context() as patched:
        place = f"{__name__}:{HybridToyForCausalLM.__name__}"
        row = registry.ModelRow(place, ("generate", "embed"))
        patched.setitem(registry._ROWS, ARCHITECTURE, row)
        yield


@torch.inference_mode()
def plain_logits(model: CausalLM, tokens: Sequence[int]) -> Tensor:
    """float32 [T, V] after each token, of one step without a cache."""
    return model.compute_logits(model(whole_batch(model, tokens)))


@torch.inference_mode()
def plain_states(model: CausalLM, tokens: Sequence[int]) -> tuple[tuple[Tensor, ...], ...]:
    """Of each layer the states after `tokens`, in block 1, of one step without a cache."""
    batch = whole_batch(model, tokens)
    model(batch)
    return batch.states


def plain_tokens(model: CausalLM, prompt: Sequence[int], count: int) -> list[int]:
    """The most likely tokens after `prompt`, each from all tokens before it: nothing is cached."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + count:
        tokens.append(int(plain_logits(model, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def whole_batch(model: CausalLM, tokens: Sequence[int]) -> ForwardBatch:
    """One sequence as one chunk; blocks are as long as it."""
    groups, length = model.cache_groups(), len(tokens)
    count = len(groups.groups)
    cache = KVCache(groups, (2,) * count, length, torch.device("cpu"))
    positions = torch.arange(length, dtype=torch.int32)
    one = torch.ones(1, dtype=torch.int32)
    return ForwardBatch(
        token_ids=torch.tensor(tokens, dtype=torch.int32),
        positions=positions,
        cu_seqlens_q=torch.tensor([0, length], dtype=torch.int32),
        seq_lens=length * one,
        max_seqlen_q=length,
        max_seqlen_k=length,
        slot_mapping=(positions + length,) * count,
        block_table=(one.view(1, 1),) * count,
        kv_cache=cache.layers,
        layer_group=cache.layer_group,
        states=cache.states,
        state_read=(-one,) * count,
        state_write=(one,) * count,
    )
