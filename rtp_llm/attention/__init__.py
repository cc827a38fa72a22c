"""Attention: what one step of a batch looks like, and the backends that compute it."""

from __future__ import annotations

from rtp_llm.attention.backend import AttentionBackend, AttentionConfig
from rtp_llm.attention.batch import ForwardBatch
from rtp_llm.attention.factory import NoBackendError, explain, make_backend
from rtp_llm.attention.rotation import Rotation

__all__ = [
    "AttentionBackend",
    "AttentionConfig",
    "ForwardBatch",
    "NoBackendError",
    "Rotation",
    "explain",
    "make_backend",
]
