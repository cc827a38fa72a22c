# SPDX-License-Identifier: Apache-2.0
"""EXAONE 4: norms after attention and feed-forward only; full layers of hybrids do not rotate."""

from __future__ import annotations

from itertools import cycle, islice
from typing import Any, ClassVar

from rtp_llm.models.config import Features
from rtp_llm.models.decoder import DecoderForCausalLM
from rtp_llm.models.layer_types import FULL, NEAR, layer_types
from rtp_llm.models.norm_slots import POST_NORMS
from rtp_llm.models.raw_config import RawConfig


class Exaone4ForCausalLM(DecoderForCausalLM):
    """Heads of Q and K have norms. Without `sliding_window` all layers are full, and rotate."""

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        "bos_token_id": 0,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "num_key_value_heads": 32,
        "rms_norm_eps": 1e-5,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
    }

    @classmethod
    def features(cls, raw: RawConfig) -> Features:
        layers = raw.integer("num_hidden_layers")
        window = raw.integer("sliding_window") if raw.get("sliding_window") else 0
        kinds = _kinds(raw) if window else [FULL] * layers
        still = [index for index, kind in enumerate(kinds) if kind == FULL] if window else []
        return Features(
            qk_norm=True,
            norms=POST_NORMS,
            layer_windows=tuple(window if kind == NEAR else 0 for kind in kinds),
            no_rope_layers=frozenset(still),
        )


_LETTERS = {"L": NEAR, "G": FULL}


def _kinds(raw: RawConfig) -> list[str]:
    """A pattern may be a number, or letters for local and global layers; the last one is full."""
    pattern = raw.get("sliding_window_pattern")
    if isinstance(pattern, str) and raw.get("layer_types") is None:
        count = raw.integer("num_hidden_layers")
        if not pattern or not set(pattern) <= _LETTERS.keys():
            raise raw.error("sliding_window_pattern", pattern, "of the letters L and G")
        letters = [_LETTERS[letter] for letter in islice(cycle(pattern), count)]
        return [*letters[:-1], FULL]
    return layer_types(raw, pattern or 4, full_last=True)
