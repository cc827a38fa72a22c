# SPDX-License-Identifier: Apache-2.0
"""Keys of config.json that change a model's arithmetic, and the families that read them.

A folder of another family with such a key was made by code that this architecture's name does not
stand for, and without the key it would give other logits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rtp_llm.model_folder import shown


@dataclass(frozen=True)
class FamilyField:
    """The beginnings of the names of the architectures that read a key, and a value of it that
    changes nothing; as null does, which is the only such value if `neutral` is None."""

    families: tuple[str, ...] = ()
    neutral: object = None

    def allows(self, architecture: str, value: object) -> bool:
        """Whether the architecture reads the key, or `value` changes nothing."""
        return value in (None, self.neutral) or architecture.startswith(self.families)


_ALWAYS_NORMED = ("Exaone4", "Gemma3", "Olmo2", "Olmo3", "Qwen3")
FAMILY_FIELDS: dict[str, FamilyField] = {
    "attention_chunk_size": FamilyField(),
    "attention_multiplier": FamilyField(("Granite",)),
    "attn_temperature_tuning": FamilyField(neutral=False),
    "clip_qkv": FamilyField(),
    "embedding_multiplier": FamilyField(("Granite",), 1),
    "key_multiplier": FamilyField(neutral=1),
    "llama_4_scaling_beta": FamilyField(("Ministral3", "Mistral3"), 0),
    "lm_head_multiplier": FamilyField(neutral=1),
    "logit_scale": FamilyField(neutral=1),
    "logits_scaling": FamilyField(("Granite",), 1),
    "no_rope_layers": FamilyField(("SmolLM3",)),
    "parallel_attn": FamilyField(neutral=False),
    "qk_layernorm": FamilyField(neutral=False),
    "residual_multiplier": FamilyField(("Granite",), 1),
    "scale_depth": FamilyField(),
    "scale_emb": FamilyField(neutral=1),
    "use_parallel_residual": FamilyField(neutral=False),
    "use_qk_norm": FamilyField(("Glm4Moe", "MiniMaxM2", *_ALWAYS_NORMED), False),
}


def unread_field(architecture: str, values: Mapping[str, Any], rope: Mapping[str, Any]) -> str:
    """The first key of `values` or of the settings `rope` that this architecture does not read and
    that changes its arithmetic, with its value; empty: there is none."""
    return next(_unread(architecture, {**rope, **values}), "")


def _unread(architecture: str, values: Mapping[str, Any]) -> Iterator[str]:
    for key, field in FAMILY_FIELDS.items():
        value = values.get(key)
        if key == "no_rope_layers" and isinstance(value, list) and all(value):
            continue  # a one is for a layer that does rotate
        if not field.allows(architecture, value):
            yield f"{key} {shown(value)}"
