# SPDX-License-Identifier: Apache-2.0
"""Qwen3.5, dense: gated delta nets, full attention in every fourth layer."""

from __future__ import annotations

from typing import Any, ClassVar

from rtp_llm.models.hybrids.hybrid import HybridForCausalLM


class Qwen3_5ForCausalLM(HybridForCausalLM):
    """Text generation; in a multimodal folder, only the language model is loaded."""

    IGNORED_PREFIXES: ClassVar[tuple[str, ...]] = (
        *HybridForCausalLM.IGNORED_PREFIXES,
        "model.visual.",
    )
    TEXT_PREFIXES: ClassVar[tuple[str, ...]] = ("model.language_model.",)
    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        **HybridForCausalLM.CONFIG_DEFAULTS,
        "num_key_value_heads": 4,
    }


class Qwen3_5ForConditionalGeneration(Qwen3_5ForCausalLM):
    """The multimodal architecture, of which only the language model is served."""
