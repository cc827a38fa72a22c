# SPDX-License-Identifier: Apache-2.0
"""A small model that is fed embeddings and positions of three axes.

Its text decoder is Qwen2-VL's: rtp_llm/testing/spanned_prompts.py asks transformers what it says.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rtp_llm.models import registry
from rtp_llm.models.config import Features
from rtp_llm.models.qwen2 import Qwen2ForCausalLM
from rtp_llm.models.raw_config import RawConfig
from rtp_llm.models.rope_config import read_mrope

NAME = "SpannedForTests"
FACTORY = f"{__name__}:make_worker"  # of the workers of other ranks
WIDTH, HEAD_DIM = 256, 64
SECTIONS = [8, 12, 12]


class SpannedForTests(Qwen2ForCausalLM):
    """Qwen2 with M-RoPE, which takes embeddings."""

    @classmethod
    def features(cls, raw: RawConfig) -> Features:
        mrope = read_mrope(raw, HEAD_DIM)
        return replace(super().features(raw), mrope=mrope, takes_embeddings=True)


def register() -> None:
    """Let config.json name the model, in this process."""
    registry._CLASSES[NAME] = f"{__name__}:{NAME}"


def make_worker(*arguments: Any) -> Any:
    """The worker of another rank, in its process."""
    register()
    from rtp_llm.engine.start.rank_worker import make_worker as make

    return make(*arguments)
