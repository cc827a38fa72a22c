# SPDX-License-Identifier: Apache-2.0
"""Layers: parameters, the mapping from checkpoint tensors to them, and calls of operators.

A layer makes a fixed number of operator calls, whatever the batch, and never waits for the device.
"""

from __future__ import annotations

from rtp_llm.layers.attention import AttentionLayer, AttentionShape
from rtp_llm.layers.embedding import (
    Embedding,
    LogitsHead,
    TiedLogitsHead,
    gather_columns,
    make_embedding,
)
from rtp_llm.layers.indexer import IndexerShape
from rtp_llm.layers.layer import Layer, shorten_lookups
from rtp_llm.layers.linear.base import Linear
from rtp_llm.layers.linear.factory import make_linear
from rtp_llm.layers.linear_attention import GatedDeltaNetShape
from rtp_llm.layers.mamba2 import Mamba2Shape
from rtp_llm.layers.mixer import Mixer, MixerShape
from rtp_llm.layers.mla_attention import MlaAttentionLayer, MlaShape
from rtp_llm.layers.mlp import GatedMLP
from rtp_llm.layers.moe import MoeBlock, MoeConfig
from rtp_llm.layers.norm import RMSNorm, residual_norm
from rtp_llm.layers.options import LayerOptions, torch_dtype
from rtp_llm.layers.rotary import Mrope, MropeConfig, Rotary
from rtp_llm.layers.shared_kv_attention import NormedValueShape, SharedKvShape
from rtp_llm.layers.weights.interleaved import Interleaved, SharedBlocksError
from rtp_llm.layers.weights.shard import DivisionError, Shard
from rtp_llm.layers.weights.shard_targets import ShardTarget, local_target
from rtp_llm.layers.weights.targets import (
    NotLocal,
    TakesRowsTogether,
    WeightTarget,
    finish_loading,
    loads_last,
    rows_together,
    weight_targets,
)
from rtp_llm.layers.wide_norm_attention import WideNormShape

__all__ = [
    "AttentionLayer",
    "AttentionShape",
    "WideNormShape",
    "Shard",
    "ShardTarget",
    "DivisionError",
    "NotLocal",
    "Embedding",
    "GatedDeltaNetShape",
    "GatedMLP",
    "Interleaved",
    "Mamba2Shape",
    "Mixer",
    "MixerShape",
    "IndexerShape",
    "MlaAttentionLayer",
    "MlaShape",
    "Layer",
    "LayerOptions",
    "Linear",
    "LogitsHead",
    "MoeBlock",
    "MoeConfig",
    "Mrope",
    "MropeConfig",
    "RMSNorm",
    "NormedValueShape",
    "Rotary",
    "SharedBlocksError",
    "SharedKvShape",
    "TakesRowsTogether",
    "TiedLogitsHead",
    "WeightTarget",
    "finish_loading",
    "gather_columns",
    "make_embedding",
    "make_linear",
    "loads_last",
    "local_target",
    "residual_norm",
    "rows_together",
    "shorten_lookups",
    "torch_dtype",
    "weight_targets",
]
