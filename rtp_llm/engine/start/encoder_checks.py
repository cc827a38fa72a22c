# SPDX-License-Identifier: Apache-2.0
"""What encoders cannot do is refused before their weights are loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rtp_llm.config.refusals import get_refusal
from rtp_llm.engine.messages import EngineStartError

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings
    from rtp_llm.models.config import ModelConfig
    from rtp_llm.worker.warm_up import StepLimits


def check_encoder(settings: Settings, config: ModelConfig) -> None:
    """Raise EngineStartError for the first setting that an encoder cannot be combined with."""
    if config.encoder is None:
        return
    chosen = {
        "--kv-cache-dtype": settings.kv_cache_dtype != "auto",
        "--cache-store-mem-mb": settings.cache_store_mem_mb is not None,
        "--role": settings.role != "both",
        "--speculative": settings.speculative != "none",
        "--pipeline-parallel-size": settings.pipeline_parallel_size > 1,
    }
    for flag, is_set in chosen.items():
        if is_set:
            row = get_refusal("encoder", flag)
            raise EngineStartError(f"{config.architecture}: {row.message}")


def check_whole_prompts(limits: StepLimits, config: ModelConfig) -> None:
    """Raise EngineStartError where a step is too small for the longest prompt of an encoder."""
    if config.encoder is not None and limits.max_batch_tokens < limits.max_model_len:
        raise EngineStartError(
            f"max_batch_tokens_size={limits.max_batch_tokens} is below the longest prompt of "
            f"{limits.max_model_len} tokens, and an encoder reads a prompt in one step: raise "
            "max_batch_tokens_size, or lower max_seq_len"
        )
