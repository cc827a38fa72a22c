# SPDX-License-Identifier: Apache-2.0
"""Locates the language model's keys in configs of multimodal models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rtp_llm.layers.weights.stored_config import KEYS
from rtp_llm.model_folder import shown
from rtp_llm.models.raw_config import ModelConfigError
from rtp_llm.models.refusals import BIDIRECTIONAL_ARCHITECTURES, architecture_of

_TEXT = "text_config"
_TEXT_PARTS = (
    "Gemma3ForConditionalGeneration",
    "Gemma4ForConditionalGeneration",
    "Gemma4UnifiedForConditionalGeneration",
    "Mistral3ForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
)
# Keys for images and videos, and those of Gemma 4 for sounds, which requests cannot contain.
_SOUNDS = ("audio_config", "audio_token_id")
_OTHERS = (
    "image_token_id",
    "video_token_id",
    "vision_config",
    "vision_end_token_id",
    "vision_start_token_id",
)
# Keys of the whole folder, which override those of the language model.
_OUTER = ("architectures", "tie_word_embeddings", *KEYS)


def text_values(file: Path, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Move the language model's keys of a multimodal config.json to the top level, and give a
    decoder that reads both ways the name of its own class.

    Raises ModelConfigError if a multimodal architecture has no keys for its language model.
    """
    named = architecture_of(values)
    if values.get("is_causal") is False and named in BIDIRECTIONAL_ARCHITECTURES:
        return {**values, "architectures": [BIDIRECTIONAL_ARCHITECTURES[named]]}
    if named not in _TEXT_PARTS:
        return values
    text = values.get(_TEXT)
    if not isinstance(text, Mapping):
        found = "it is missing" if text is None else f"not {shown(text)}"
        raise ModelConfigError(f"{file}: {_TEXT} must be an object; {found}")
    others = (_TEXT, *_OTHERS, *(_SOUNDS if named.startswith("Gemma4") else ()))
    outer = {key: value for key, value in values.items() if key not in others}
    return {**outer, **text, **{key: outer[key] for key in _OUTER if key in outer}}
