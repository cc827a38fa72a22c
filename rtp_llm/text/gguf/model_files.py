# SPDX-License-Identifier: Apache-2.0
"""What the files next to a tokenizer say elsewhere: special tokens, chat templates, stop ids."""

from __future__ import annotations

from typing import Any

from rtp_llm.gguf import Metadata
from rtp_llm.gguf.tokens import CONTROL, USER_DEFINED
from rtp_llm.text.gguf.vocabulary import Vocabulary, read_vocabulary

_TEMPLATE = "tokenizer.chat_template"
# Keys of tokenizer_config.json, and the names of these tokens in GGUF.
_SPECIAL = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "sep_token": "seperator",
    "pad_token": "padding",
    "cls_token": "cls",
    "mask_token": "mask",
}
_STOPS = ("eos", "eot", "eom")
# Ends of answers by their texts. Most files name one such token at most; llama.cpp stops at these.
_KNOWN_STOPS = frozenset(
    {
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<turn|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<EOT>",
        "[EOT]",
        "<｜end▁of▁sentence｜>",
    }
)
# In Harmony and its relatives <|end|> ends a message, and these end the answer.
_MESSAGE_END = "<|end|>"
_ANSWER_ENDS = ({"<|return|>", "<|call|>"}, {"<|flush|>", "<|calls|>"})


def tokenizer_values(metadata: Metadata) -> dict[str, Any]:
    """What tokenizer_config.json would hold: texts of special tokens, chat_template."""
    vocabulary = read_vocabulary(metadata)
    values: dict[str, Any] = {}
    for key, name in _SPECIAL.items():
        if (text := vocabulary.text_of(name)) is not None:
            values[key] = text
    if (template := _templates(metadata)) is not None:
        values["chat_template"] = template
    return values


def _templates(metadata: Metadata) -> str | list[dict[str, str]] | None:
    """The only template, or all of them with their names."""
    default = metadata.text(_TEMPLATE)
    named = []
    for name in metadata.texts("tokenizer.chat_templates") or ():
        if (text := metadata.text(f"{_TEMPLATE}.{name}")) is not None:
            named.append({"name": name, "template": text})
    if not named:
        return default
    if default is not None:
        named = [{"name": "default", "template": default}, *named]
    return named


def stop_ids(metadata: Metadata) -> list[int]:
    """The ids that end an answer: those that the file names, then others known by their texts."""
    vocabulary = read_vocabulary(metadata)
    found = [vocabulary.ids[name] for name in _STOPS if name in vocabulary.ids]
    return [*dict.fromkeys([*found, *_known_stops(vocabulary)])]


def _known_stops(vocabulary: Vocabulary) -> list[int]:
    there = {
        token: number
        for number, token in enumerate(vocabulary.tokens)
        if token in _KNOWN_STOPS and vocabulary.kinds[number] in (CONTROL, USER_DEFINED)
    }
    if any(ends <= there.keys() for ends in _ANSWER_ENDS):
        there.pop(_MESSAGE_END, None)
    return [*there.values()]
