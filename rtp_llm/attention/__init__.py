"""Attention: what one step of a batch looks like, and the backends that compute it."""

from __future__ import annotations

from rtp_llm.attention.backend import AttentionBackend, AttentionConfig
from rtp_llm.attention.batch import ForwardBatch, HostNumbers
from rtp_llm.attention.factory import check_backend, explain, make_backend
from rtp_llm.attention.latent import LatentBackend, LatentConfig, LatentWeights
from rtp_llm.attention.latent_factory import (
    check_latent_backend,
    explain_latent,
    make_latent_backend,
)
from rtp_llm.attention.rotation import Rotation

__all__ = [
    "AttentionBackend",
    "AttentionConfig",
    "ForwardBatch",
    "HostNumbers",
    "LatentBackend",
    "LatentConfig",
    "LatentWeights",
    "Rotation",
    "check_backend",
    "check_latent_backend",
    "explain",
    "explain_latent",
    "make_backend",
    "make_latent_backend",
]
