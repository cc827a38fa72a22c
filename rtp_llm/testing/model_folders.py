# SPDX-License-Identifier: Apache-2.0
"""Small model folders with real tokenizer styles, for tests of text/ and server/."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    "What is 12 + 30? The answer is 42.",
    "Once upon a time there was a small house, and in the house lived a cat.",
    "def add(a, b):\n    return a + b\n",
    "<|im_start|>user\nHello<|im_end|>\n",
    "Zürich, Genève; naïve café — “quotes”.",
    "你好 世界。今天天气很好。",
    "こんにちは世界 😀😃 👍🏽 👨‍👩‍👧",
]
SPECIAL = ["<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>"]

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def byte_level() -> tokenizers.Tokenizer:
    """As GPT-2, Llama-3 and Qwen."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([tokenizers.AddedToken("<think>", special=False)])
    return tokenizer


def digits() -> tokenizers.Tokenizer:
    """Eleven tokens: three special ones, and the digits up to 7."""
    words = [*SPECIAL[:3], *"01234567"]
    tokenizer = tokenizers.Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, []))
    tokenizer.add_special_tokens(SPECIAL[:3])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def sentencepiece(strip: bool = True) -> tokenizers.Tokenizer:
    """As Llama-2 and Mistral (strip) or Gemma (no strip): metaspace with byte fallback."""
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        if strip
        else [normalizers.Replace(" ", "▁")]
    )
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if strip else parts)
    trainer = trainers.BpeTrainer(
        vocab_size=560,
        special_tokens=[*SPECIAL, *byte_tokens],
        limit_alphabet=60,
        show_progress=False,
    )
    tokenizer.train_from_iterator([text.replace(" ", "▁") for text in CORPUS[:4]], trainer)
    # As in real models, the 256 byte tokens are ordinary entries, not special ones.
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [t for t in state["added_tokens"] if t["content"] in SPECIAL]
    return tokenizers.Tokenizer.from_str(json.dumps(state))


def metaspace() -> tokenizers.Tokenizer:
    """As T5-style exports: Metaspace on both sides, no byte fallback."""
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def wordpiece() -> tokenizers.Tokenizer:
    """A decoder that is not a concatenation of bytes."""
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


STYLES = {
    "byte_level": byte_level,
    "sentencepiece": sentencepiece,
    "gemma": lambda: sentencepiece(strip=False),
    "metaspace": metaspace,
    "wordpiece": wordpiece,
}


def with_bos(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The tokenizer puts <s> before a text."""
    bos = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", bos)]
    )
    return tokenizer


def write_folder(
    folder: Path,
    tokenizer: tokenizers.Tokenizer,
    *,
    template: str | None = CHATML,
    tokenizer_config: dict[str, Any] | None = None,
    generation_config: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
) -> Path:
    """A folder that passes for a model's; its weights file is empty."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    content = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "<|im_end|>",
        "unk_token": "<unk>",
        "clean_up_tokenization_spaces": False,
        **({} if template is None else {"chat_template": template}),
        **(tokenizer_config or {}),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(content))
    (folder / "config.json").write_text(json.dumps(config or {"eos_token_id": 1}))
    if generation_config is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation_config))
    (folder / "model.safetensors").touch()
    return folder
