# SPDX-License-Identifier: Apache-2.0
"""Mistral Small 3.1 and its successors, of which only the language model is served."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from rtp_llm.models.config import ModelConfig
from rtp_llm.models.decoder import DecoderForCausalLM
from rtp_llm.models.decoders.ministral3 import Ministral3ForCausalLM
from rtp_llm.models.decoders.mistral import MistralForCausalLM
from rtp_llm.models.raw_config import RawConfig

# By the model_type of text_config; refusals.py has the same names.
_TEXTS: dict[str, type[DecoderForCausalLM]] = {
    "ministral3": Ministral3ForCausalLM,
    "mistral": MistralForCausalLM,
    "mistral3": MistralForCausalLM,  # of the whole folder, if its text_config has none
}


class Mistral3ForConditionalGeneration(MistralForCausalLM):
    """A vision tower and a language model, a Mistral or a Ministral 3."""

    TEXT_PREFIXES: ClassVar[tuple[str, ...]] = (
        "language_model.model.",
        "model.language_model.",  # as newer transformers may save it
    )
    IGNORED_PREFIXES: ClassVar[tuple[str, ...]] = (
        "model.multi_modal_projector.",
        "model.vision_tower.",
        "multi_modal_projector.",
        "vision_tower.",
    )

    @classmethod
    def read_config(cls, raw: RawConfig) -> ModelConfig:
        text = _TEXTS[raw.get("model_type") or "mistral"]
        return text.read_config(replace(raw, defaults=text.CONFIG_DEFAULTS))
