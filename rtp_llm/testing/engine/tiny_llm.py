# SPDX-License-Identifier: Apache-2.0
"""A tiny model with a real tokenizer, for tests of offline generation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rtp_llm.request.sampling_params import SamplingParams
from rtp_llm.testing.model_folders import CHATML, byte_level
from rtp_llm.testing.models.transformers_models import save_model

GREEDY = SamplingParams(temperature=0, max_tokens=12)
SMALL: dict[str, Any] = {"kv_cache_mem_mb": 8, "num_threads": 1}


def save_folder(path: Path) -> Path:
    """Its tokenizer knows an end-of-sequence token that config.json does not name."""
    tokenizer = byte_level()
    end = tokenizer.token_to_id("<|im_end|>")
    save_model(path, "qwen3", vocab_size=tokenizer.get_vocab_size(), eos_token_id=1)
    tokenizer.save(str(path / "tokenizer.json"))
    names = {"eos_token": "<|im_end|>", "chat_template": CHATML}
    (path / "tokenizer_config.json").write_text(json.dumps(names))
    defaults = {"do_sample": False, "eos_token_id": 1, "max_new_tokens": 5}
    (path / "generation_config.json").write_text(json.dumps(defaults))
    assert end != 1
    return path
