"""A model that servers in tests have, and which ranks can divide."""

from __future__ import annotations

import json
from pathlib import Path

from rtp_llm.testing.model_folders import CHATML, byte_level
from rtp_llm.testing.transformers_models import save_model


def save_served_model(folder: Path, *, context: int, kv_heads: int) -> None:
    """A small qwen3 for `context` tokens, with a tokenizer and a template of chats."""
    tokenizer = byte_level()
    sizes = {"max_position_embeddings": context, "num_key_value_heads": kv_heads, "head_dim": 16}
    save_model(folder, "qwen3", eos_token_id=1, vocab_size=tokenizer.get_vocab_size(), **sizes)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"eos_token": "<|im_end|>", "chat_template": CHATML}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
