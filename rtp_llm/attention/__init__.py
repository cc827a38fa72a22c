"""Attention: what one step of a batch looks like, and the backends that compute it."""

from __future__ import annotations

from rtp_llm.attention.backend import AttentionBackend, AttentionConfig
from rtp_llm.attention.batch import ForwardBatch, HostNumbers
from rtp_llm.attention.factory import check_backend, explain, make_backend
from rtp_llm.attention.mla import MlaBackend, MlaConfig, MlaWeights
from rtp_llm.attention.mla_factory import (
    check_mla_backend,
    explain_mla,
    make_mla_backend,
)
from rtp_llm.attention.rotation import Rotation

__all__ = [
    "AttentionBackend",
    "AttentionConfig",
    "ForwardBatch",
    "HostNumbers",
    "MlaBackend",
    "MlaConfig",
    "MlaWeights",
    "Rotation",
    "check_backend",
    "check_mla_backend",
    "explain",
    "explain_mla",
    "make_backend",
    "make_mla_backend",
]
