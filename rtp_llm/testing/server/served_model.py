# SPDX-License-Identifier: Apache-2.0
"""A model that servers in tests have, and which ranks can divide; and what they are asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx

from rtp_llm.testing.model_folders import CHATML, byte_level
from rtp_llm.testing.models.transformers_models import save_model
from rtp_llm.testing.server_processes import TIMEOUT

PROMPTS = ["What is 12 + 30?", "Once upon a time", "a", "def add(a, b):"]
ASK: dict[str, Any] = {"max_tokens": 20, "ignore_eos": True}
GREEDY: dict[str, Any] = {**ASK, "temperature": 0}


def save_served_model(folder: Path, *, context: int, kv_heads: int, kind: str = "qwen3") -> None:
    """A small one for `context` tokens, with a tokenizer and a template of chats."""
    tokenizer = byte_level()
    sizes = {"max_position_embeddings": context, "num_key_value_heads": kv_heads, "head_dim": 16}
    save_model(folder, kind, eos_token_id=1, vocab_size=tokenizer.get_vocab_size(), **sizes)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"eos_token": "<|im_end|>", "chat_template": CHATML}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))


def answers(url: str, **body: Any) -> list[str]:
    """To PROMPTS, greedy unless `body` says otherwise, of a server whose model is named tiny."""
    requested = {"model": "tiny", "prompt": PROMPTS, **GREEDY, **body}
    found = httpx.post(f"{url}/v1/completions", json=requested, timeout=TIMEOUT)
    assert found.status_code == 200, found.text
    return [choice["text"] for choice in found.json()["choices"]]
