# SPDX-License-Identifier: Apache-2.0
"""What all encoders have in common for the worker and for the loader."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from rtp_llm.attention import CacheGroups, ForwardBatch
from rtp_llm.attention.model_inputs import InputNeeds, ModelInputs
from rtp_llm.layers import Layer, LayerOptions
from rtp_llm.layers.encoder_attention import EncoderAttentionShape
from rtp_llm.models.causal_lm import Architecture, ModelOptions
from rtp_llm.models.config import ModelConfig
from rtp_llm.models.encoders.label_head import HeadNames, LabelHead


class EncoderModel(Architecture):
    """Hidden states of whole prompts, for heads that pool them.

    QKV: names of the query, key and value projections in a layer of the checkpoint, or the one name
    of all three. TEXT_HEAD and TOKEN_HEAD: those of the heads that classify.
    """

    QKV: ClassVar[tuple[str, ...]] = ("q_proj", "k_proj", "v_proj")
    TEXT_HEAD: ClassVar[HeadNames] = HeadNames()
    TOKEN_HEAD: ClassVar[HeadNames] = HeadNames()

    def __init__(self, config: ModelConfig, options: ModelOptions) -> None:
        super().__init__()
        self.config, self.options = config, options
        assert config.encoder is not None
        self.inputs = ModelInputs(InputNeeds(token_types=config.encoder.type_rows > 1))
        layers = replace(options.layer_options(), packs_weights=True)
        self.model = self.make_layers(layers.inside("model"))
        if (classifier := config.classifier) is not None:
            names = self.TOKEN_HEAD if classifier.per_token else self.TEXT_HEAD
            self.head = LabelHead(config, self.head_names(names), layers)

    @abstractmethod
    def make_layers(self, options: LayerOptions) -> Layer:
        """Create the layers; they turn a ForwardBatch into hidden states [T, hidden]."""

    def head_names(self, names: HeadNames) -> HeadNames:
        """TEXT_HEAD or TOKEN_HEAD, as config.json changes them."""
        return names

    def classify(self, states: Tensor) -> Tensor:
        scores: Tensor = self.head(states)
        return scores

    @classmethod
    def mixers(cls, config: ModelConfig) -> tuple[EncoderAttentionShape, ...]:
        encoder = config.encoder
        assert encoder is not None
        return tuple(
            EncoderAttentionShape(
                hidden_size=config.hidden_size,
                num_heads=config.num_heads,
                num_kv_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                scale=encoder.scale,
                window=window,
                bias=config.qkv_bias,
                parts=cls.QKV,
                norm_eps=config.rms_norm_eps if config.qk_norm else None,
                norm_offset=config.norm_offset,
                output_bias=config.output_bias,
            )
            for window in config.layer_windows
        )

    @property
    def local_shapes(self) -> tuple[EncoderAttentionShape, ...]:
        """The attention of each layer, of a tensor-parallel rank its part."""
        ranks, shapes = self.options.tensor_parallel, self.mixers(self.config)
        return shapes if ranks.size == 1 else tuple(each.on_rank(ranks) for each in shapes)

    @classmethod
    def explain_backends(cls, config: ModelConfig, options: ModelOptions) -> str:
        windows = {window for window in config.layer_windows if window}
        near = f", in some layers at most {max(windows)} tokens away" if windows else ""
        return f"attention: both ways over whole prompts{near}"

    def cache_groups(self) -> CacheGroups:
        return CacheGroups.of([None] * self.config.num_layers)

    def context_bytes(self, keys: int) -> int:
        return 0

    def forward(self, batch: ForwardBatch) -> Tensor:
        hidden: Tensor = self.model(batch)
        return hidden

    @property
    def has_logits(self) -> bool:
        return False

    @property
    def drafts(self) -> None:
        return None

    def draft_states(self, hidden: Tensor) -> Tensor:
        raise AssertionError("an encoder drafts nothing")

    def draft(self, batch: ForwardBatch, states: Tensor, rows: Tensor | None = None) -> Tensor:
        raise AssertionError("an encoder drafts nothing")

    def warm_up(self, kv_cache: Sequence[Tensor]) -> None:
        """Nothing is compiled on first use."""

    def compute_logits(self, hidden: Tensor) -> Tensor:
        raise AssertionError("an encoder has no logits")
