# SPDX-License-Identifier: Apache-2.0
"""Attention: the batch of one step, and the backends that compute attention over it."""

from __future__ import annotations

from rtp_llm.attention.backend import (
    AttentionBackend,
    AttentionConfig,
    Backend,
    BackendConfig,
    BackendOptions,
    cache_dtypes,
)
from rtp_llm.attention.batch import ForwardBatch, HostNumbers
from rtp_llm.attention.cache_scales import CacheScales
from rtp_llm.attention.cache_spec import (
    CacheDtypes,
    CacheGroup,
    CacheGroups,
    CacheSpec,
    FullAttentionSpec,
    IndexerSpec,
    MlaSpec,
    RecurrentSpec,
    SlidingWindowSpec,
)
from rtp_llm.attention.factory import check_backend, explain, make_backend
from rtp_llm.attention.group_backends import GroupBackends, together
from rtp_llm.attention.indexer import IndexerConfig, IndexerInputs
from rtp_llm.attention.linear_attention import (
    DeltaRuleWeights,
    GatedDeltaRuleBackend,
    LinearAttentionConfig,
    Mamba2Backend,
    Mamba2Weights,
)
from rtp_llm.attention.mla import MlaBackend, MlaConfig, MlaWeights
from rtp_llm.attention.rotation import Rotation, normalize_heads

__all__ = [
    "AttentionBackend",
    "AttentionConfig",
    "Backend",
    "BackendConfig",
    "BackendOptions",
    "CacheDtypes",
    "CacheGroup",
    "CacheGroups",
    "CacheScales",
    "CacheSpec",
    "DeltaRuleWeights",
    "ForwardBatch",
    "FullAttentionSpec",
    "GatedDeltaRuleBackend",
    "GroupBackends",
    "HostNumbers",
    "IndexerConfig",
    "IndexerInputs",
    "IndexerSpec",
    "LinearAttentionConfig",
    "Mamba2Backend",
    "Mamba2Weights",
    "MlaBackend",
    "MlaConfig",
    "MlaSpec",
    "MlaWeights",
    "RecurrentSpec",
    "Rotation",
    "SlidingWindowSpec",
    "cache_dtypes",
    "check_backend",
    "explain",
    "make_backend",
    "normalize_heads",
    "together",
]
