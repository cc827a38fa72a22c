# SPDX-License-Identifier: Apache-2.0
"""Rows of the table of refusals about GGUF files."""

from __future__ import annotations

from rtp_llm.config.refusal import Refusal

GGUF_REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        "model",
        "GGUF architecture",
        "No model of this name is read from GGUF files.",
        "Choose a file of a supported architecture, or the model's folder on the Hugging Face Hub.",
    ),
    Refusal(
        "model",
        "GGUF tensor type",
        "Its weights cannot be computed here.",
        "Take a file of the same model in Q4_K_M, Q8_0 or another type of docs/formats.md.",
    ),
    Refusal(
        "model",
        "classification head of a GGUF file",
        "Only GGUF files of Qwen3-Reranker, and of BERT with cls and cls.output, give scores.",
        "Serve the model's folder from the Hugging Face Hub.",
    ),
)
