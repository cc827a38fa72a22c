# SPDX-License-Identifier: Apache-2.0
"""Where the layers of a decoder have norms, and what checkpoints call them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NormSlots:
    """The names of a layer's norms before and after attention and the feed-forward part.

    Empty for a norm that the layer lacks.
    """

    attention_input: str = "input_layernorm"
    attention_output: str = ""
    mlp_input: str = "post_attention_layernorm"
    mlp_output: str = ""

    @property
    def has_outputs(self) -> bool:
        """Whether the results of both parts are normalised before they are added."""
        return bool(self.attention_output and self.mlp_output)


PRE_NORMS = NormSlots()
POST_NORMS = NormSlots("", "post_attention_layernorm", "", "post_feedforward_layernorm")
SANDWICH_NORMS = NormSlots(
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)
GLM4_NORMS = NormSlots(
    "input_layernorm",
    "post_self_attn_layernorm",
    "post_attention_layernorm",
    "post_mlp_layernorm",
)
