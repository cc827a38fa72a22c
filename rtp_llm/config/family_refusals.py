# SPDX-License-Identifier: Apache-2.0
"""Rows of the table of refusals for model families that are known and not supported."""

from __future__ import annotations

from rtp_llm.config.refusal import Refusal

FAMILY_REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        "model",
        "Gemma 3n",
        "Its layers have embeddings of their own, several residual streams and shared caches, "
        "which are not implemented.",
        "Choose Gemma 3 or 4.",
    ),
    Refusal(
        "model",
        "DeepSeek-V4",
        "Its layers have several residual streams, and caches of compressed tokens which cannot be "
        "rolled back; neither is implemented.",
        "Choose DeepSeek-V3.2.",
    ),
    Refusal(
        "model",
        "GLM-5.3-Flash",
        "Its layers have several residual streams, linear attention with a decay for each channel "
        "and an indexer of pooled keys, which are not implemented.",
        "Choose GLM-5 to 5.2.",
    ),
    Refusal(
        "model",
        "Kimi Linear and Kimi-K3",
        "Their linear attention has a decay for each channel, which is not implemented.",
        "Choose a model with gated delta nets, such as Qwen3.5.",
    ),
    Refusal(
        "model",
        "MiniMax-M3",
        "Its indexer selects blocks of tokens for each KV head, which is not implemented.",
        "Choose DeepSeek-V3.2 or GLM-5, whose indexers are.",
    ),
    Refusal(
        "model",
        "Qwen3.8-Flash-Next",
        "Its layers have several residual streams, an indexer of pooled keys and a table of "
        "n-grams, which are not implemented.",
        "Choose Qwen3.8-27B or Qwen3.6-35B-A3B.",
    ),
    Refusal(
        "model",
        "other text part of Mistral 3",
        "Its language model is neither a Mistral nor a Ministral 3; those with latent attention "
        "are not implemented.",
        "Choose Mistral Small 3.1 or 3.2, Ministral 3, or Devstral.",
    ),
    Refusal(
        "model",
        "field of another family",
        "config.json has a field that changes the model's arithmetic and that this architecture "
        "does not read, so its logits would be wrong.",
        "Choose a folder whose architecture reads the field; remove it only if the model was "
        "trained without it.",
    ),
    Refusal(
        "model",
        "drafter of Gemma 4",
        "Its layers read the keys and values of the model that it drafts for, which a draft model "
        "here does not.",
        "Set --speculative ngram or suffix, or a smaller Gemma 4 as a draft model.",
    ),
)
