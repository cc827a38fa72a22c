# SPDX-License-Identifier: Apache-2.0
"""What a reranker reads: its tokenizer's form of a pair, or the conversation of Qwen3-Reranker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rtp_llm.text.tokenizer import Tokenizer

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
)
_AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


@dataclass(frozen=True)
class Frame:
    """The token ids around each text; special tokens are among them."""

    before: tuple[int, ...]
    after: tuple[int, ...]


def is_conversation(config: Mapping[str, Any]) -> bool:
    """Whether a model with this config.json is asked about a pair in a conversation: Qwen3-Reranker
    as published, and made a classifier with one label."""
    (first, *_) = config.get("architectures") or [""]
    return first in ("Qwen3ForCausalLM", "Qwen3ForSequenceClassification")


def conversation_frame(tokenizer: Tokenizer) -> Frame:
    """What comes before and after each text of `conversation_text`."""
    before, after = (tuple(tokenizer.encode(text, False)) for text in (_BEFORE, _AFTER))
    return Frame(before, after)


def conversation_text(query: str, document: str, instruction: str | None = None) -> str:
    """The question about a pair; `instruction`: what a document must do for the query."""
    task = INSTRUCTION if instruction is None else instruction
    return f"<Instruct>: {task}\n<Query>: {query}\n<Document>: {document}"
