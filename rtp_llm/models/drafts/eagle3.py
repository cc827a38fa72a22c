# SPDX-License-Identifier: Apache-2.0
"""EAGLE-3: one layer, trained for a model, that drafts from its intermediate hidden states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rtp_llm.attention import AttentionBackend, Backend, ForwardBatch
from rtp_llm.layers import (
    AttentionLayer,
    AttentionShape,
    Embedding,
    GatedMLP,
    Layer,
    LayerOptions,
    LogitsHead,
    Mixer,
    MixerShape,
    RMSNorm,
    Rotary,
    gather_columns,
    make_embedding,
    residual_norm,
)
from rtp_llm.layers.linear.factory import make_linear
from rtp_llm.model_folder import read_json
from rtp_llm.models.config import Eagle3Config, Features, ModelConfig, make_config
from rtp_llm.models.drafts.draft_head import DraftHead, TargetParts, of_rows
from rtp_llm.models.raw_config import RawConfig
from rtp_llm.models.refusals import architecture_of, refuse

ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "LlamaForCausalLM")
_DEFAULTS: dict[str, Any] = {"hidden_act": "silu", "rms_norm_eps": 1e-6}
# Variants that are not supported.
_OTHER = ("norm_before_fc", "fc_norm", "norm_output", "logit_scale")


def read_eagle3_config(folder: Path, target: ModelConfig) -> Eagle3Config:
    """Read the config of the head in `folder` for the model `target`.

    Raises UnsupportedModelError for another kind of draft model, and ModelConfigError if its
    config.json does not match the target.
    """
    raw = RawConfig(folder, read_json(folder / "config.json", required=True), _DEFAULTS)
    raw.check()
    named, vocabulary = architecture_of(raw.values), raw.integer("vocab_size")
    size = raw.get("draft_vocab_size")
    if named not in ARCHITECTURES or size is None:
        raise refuse("draft model of another kind", f"{folder} has {named}")
    for key in _OTHER:
        if raw.get(key):
            raise refuse("draft model of another kind", f"{folder} has {key}")
    if vocabulary != target.vocab_size:
        raise raw.error("vocab_size", vocabulary, f"{target.vocab_size}, as the model's")
    own = make_config(raw, Features(qkv_bias=raw.flag("attention_bias")))
    if own.num_layers != 1:
        raise raw.error("num_hidden_layers", own.num_layers, "1")
    return Eagle3Config(
        folder=folder,
        own=own,
        captures=_captures(raw, target.num_layers),
        capture_size=target.hidden_size,
        vocab_size=raw.integer("draft_vocab_size"),
        norm_before_residual=raw.flag("norm_before_residual"),
    )


def _captures(raw: RawConfig, layers: int) -> tuple[int, ...]:
    key = "eagle_aux_hidden_state_layer_ids"
    given = raw.get(key)
    if given is None:
        return 2, layers // 2, layers - 3
    is_right = isinstance(given, list) and len(given) == 3
    if not is_right or not all(type(each) is int and 0 <= each < layers for each in given):
        raise raw.error(key, given, f"three layers from 0 to {layers - 1}")
    return tuple(given)


class _Layer(Layer):
    """A Llama layer whose attention reads two concatenated vectors."""

    def __init__(
        self,
        index: int,
        config: Eagle3Config,
        mixer: MixerShape,
        backend: Backend[Any] | None,
        options: LayerOptions,
    ) -> None:
        super().__init__()
        assert isinstance(mixer, AttentionShape) and isinstance(backend, AttentionBackend)
        own = config.own
        hidden, eps = own.hidden_size, own.rms_norm_eps
        self.input_layernorm = RMSNorm(hidden, eps, options)
        self.hidden_norm = RMSNorm(hidden, eps, options)
        self.self_attn = AttentionLayer(index, mixer, backend, options.inside("self_attn"))
        self.post_attention_layernorm = residual_norm(hidden, eps, options)
        inner, mlp = own.intermediate_size, options.inside("mlp")
        self.mlp = GatedMLP(hidden, inner, own.hidden_act, own.mlp_bias, mlp)
        self._norm_before_residual = config.norm_before_residual

    def forward(
        self,
        embedded: Tensor,
        states: Tensor,
        cos_sin: Tensor | None,
        batch: ForwardBatch,
        rows: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the residual [T, hidden] and the value to add to it; only ``rows``, if given."""
        normed = self.hidden_norm(states)
        residual = normed if self._norm_before_residual else states.clone()
        qkv = self.self_attn.qkv_proj(torch.cat((self.input_layernorm(embedded), normed), 1))
        pending = self.self_attn.attend(qkv, residual, cos_sin, batch)
        pending, residual = of_rows(rows, pending, residual)
        return residual, self.mlp(self.post_attention_layernorm, residual, pending)


class Eagle3Head(DraftHead):
    """States are the layer's output before the norm; logits are computed after the norm.

    Source: EAGLE-3 (Li et al., 2025); weight names follow its checkpoints.
    """

    d2t: Tensor

    def __init__(
        self,
        index: int,
        config: Eagle3Config,
        mixer: MixerShape,
        backend: Backend[Any] | None,
        options: LayerOptions,
        target: TargetParts,
        num_positions: int,
    ) -> None:
        super().__init__()
        options, own = options.inside("eagle3"), config.own
        self._ranks = options.tensor_parallel
        self.width, self.captures, self._target = own.hidden_size, config.captures, target
        columns = len(config.captures) * config.capture_size
        self.fc = make_linear(columns, {"fc": own.hidden_size}, False, options)
        self.midlayer = _Layer(index, config, mixer, backend, options.inside("midlayer"))
        self.norm = RMSNorm(own.hidden_size, own.rms_norm_eps, options)
        name = "eagle3.lm_head.weight"
        self.lm_head = LogitsHead(config.vocab_size, own.hidden_size, options.unquantized(), name)
        self.embed_tokens: Embedding | None = None
        if config.own_embedding:
            self.embed_tokens = make_embedding(own.vocab_size, own.hidden_size, options)
        self.rotary = Rotary(own.rope, num_positions, options.device)
        # Offset from an id of the draft vocabulary to the model's id; int64 [vocabulary].
        offsets = torch.zeros(config.vocab_size, dtype=torch.int64, device=options.device)
        self.register_buffer("d2t", offsets, persistent=False)

    @property
    def mixer(self) -> Mixer:
        return self.midlayer.self_attn

    def condition(self, hidden: Tensor) -> Tensor:
        states: Tensor = self.fc(hidden)
        return states

    def forward(
        self, ids: Tensor, states: Tensor, batch: ForwardBatch, rows: Tensor | None = None
    ) -> Tensor:
        embedded = (self.embed_tokens or self._target.embed)(ids)
        residual: Tensor
        residual, pending = self.midlayer(embedded, states, self.rotary.cos_sin, batch, rows)
        if pending is None:
            return residual
        return residual.add_(self._ranks.all_reduce(pending))

    def logits(self, states: Tensor) -> Tensor:
        logits: Tensor = self.lm_head(self.norm(states))
        return gather_columns(logits, self.lm_head.shard, self._ranks)

    def tokens(self, choices: Tensor) -> Tensor:
        return choices + self.d2t.index_select(0, choices)

    def columns(self, vocab_size: int) -> Tensor | None:
        numbers = torch.arange(len(self.d2t), device=self.d2t.device)
        ids = numbers + self.d2t
        columns = torch.full((vocab_size,), -1, dtype=torch.int32, device=ids.device)
        columns[ids] = numbers.int()
        if int((columns >= 0).sum()) < len(ids):
            raise refuse("draft model of another kind", "two of its tokens are one of the model's")
        return columns
