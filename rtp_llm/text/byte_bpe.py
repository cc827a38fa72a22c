# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of a folder that has vocab.json and merges.txt and no tokenizer.json: byte BPE."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from rtp_llm.model_folder import ModelFilesError, name_of, read_json, read_text, shown
from rtp_llm.text.added_tokens import add_tokens, begin_and_end
from rtp_llm.text.gguf.pre_tokenizers import PRE_TOKENIZERS

VOCAB, MERGES = "vocab.json", "merges.txt"
# How the tokenizer classes of transformers cut texts, by the names of PRE_TOKENIZERS.
_CUTS = {
    "GPT2Tokenizer": "gpt-2",
    "Qwen2Tokenizer": "qwen2",
    "Qwen3_5Tokenizer": "qwen35",
    "RobertaTokenizer": "gpt-2",
}
_SPECIAL = {
    "GPT2Tokenizer": {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"},
    "Qwen2Tokenizer": {"eos_token": "<|endoftext|>"},
    "Qwen3_5Tokenizer": {"eos_token": "<|endoftext|>"},
    "RobertaTokenizer": {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "mask_token": "<mask>",
    },
}


def read_byte_bpe(
    folder: Path, config: Mapping[str, Any], special: Mapping[str, str]
) -> tokenizers.Tokenizer:
    """Build the tokenizer as the class in `config` (tokenizer_config.json) does.

    Raises ModelFilesError for another class, since the files do not say how it cuts texts, and for
    files that do not fit together.
    """
    file, given = folder / VOCAB, config.get("tokenizer_class")
    name = given.removesuffix("Fast") if isinstance(given, str) else ""
    if name not in _CUTS:
        raise ModelFilesError(
            f"{file}: how {shown(given)} cuts texts is not known here (known: {', '.join(_CUTS)}). "
            "Convert it once with transformers: "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)."
        )
    numbers = read_json(file, required=True)
    if not all(isinstance(number, int) and number >= 0 for number in numbers.values()):
        raise ModelFilesError(f"{file} must have an id for each token")
    backend = tokenizers.Tokenizer(models.BPE(dict(numbers), _merges(folder / MERGES, numbers)))
    cuts = PRE_TOKENIZERS[_CUTS[name]]
    if cuts.nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(tokenizers.Regex(each), "isolated") for each in cuts.patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    add_tokens(backend, folder, config)
    _add_special(backend, name, special, config)
    return backend


def _add_special(
    backend: tokenizers.Tokenizer,
    class_name: str,
    special: Mapping[str, str],
    config: Mapping[str, Any],
) -> None:
    """Add the special tokens of the class, and put them around texts as it does."""
    names = {**_SPECIAL[class_name], **special}
    backend.add_special_tokens(
        [
            tokenizers.AddedToken(each, special=True, normalized=False, lstrip=key == "mask_token")
            for key, each in names.items()
        ]
    )
    if class_name != "RobertaTokenizer":
        begin_and_end(backend, names, config, begins=False)
        return
    last, first = names["eos_token"], names["bos_token"]
    ids = backend.get_vocab()
    backend.post_processor = processors.RobertaProcessing(
        (last, ids[last]), (first, ids[first]), add_prefix_space=False
    )


def _merges(file: Path, numbers: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The pairs of tokens that are merged, a line each. Raises ModelFilesError."""
    found = []
    for line in read_text(file).splitlines():
        if not line or line.startswith("#version"):
            continue
        first, _, second = line.partition(" ")
        if not (first in numbers and second in numbers and first + second in numbers):
            raise ModelFilesError(
                f"{file} has {name_of(line)}, which is not two tokens that make a third"
            )
        found.append((first, second))
    return found
