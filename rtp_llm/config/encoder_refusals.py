# SPDX-License-Identifier: Apache-2.0
"""The rows of the table of refusals for encoders: models that read prompts both ways."""

from __future__ import annotations

from rtp_llm.config.refusal import Refusal

_LEAVE_OUT = "Leave it out."
_NO_CACHE = "An encoder keeps no KV cache."

ENCODER_REFUSALS: tuple[Refusal, ...] = (
    Refusal("encoder", "--kv-cache-dtype", _NO_CACHE, _LEAVE_OUT),
    Refusal("encoder", "--cache-store-mem-mb", _NO_CACHE, _LEAVE_OUT),
    Refusal("encoder", "--role", _NO_CACHE + " There are no blocks to send.", _LEAVE_OUT),
    Refusal("encoder", "--speculative", "An encoder generates no tokens to draft.", _LEAVE_OUT),
    Refusal(
        "encoder",
        "--pipeline-parallel-size",
        "Layers of an encoder are not divided into stages.",
        "Set --tensor-parallel-size, or --data-parallel-size for an encoder on each device.",
    ),
    Refusal(
        "model",
        "encoder that is used as a decoder",
        "Encoders read prompts both ways, without cross attention and without a cache.",
        "Choose a model whose config.json has is_decoder and add_cross_attention false.",
    ),
    Refusal(
        "model",
        "head size of an encoder",
        "The attention of encoders takes heads of 16 to 256 channels, in multiples of 8.",
        "Choose a model with such heads.",
    ),
    Refusal(
        "model",
        "is_causal false",
        "This architecture reads prompts in one direction only.",
        "Choose a causal model, or an encoder.",
    ),
)
