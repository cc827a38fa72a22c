# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of a folder that has vocab.txt and no tokenizer.json: BERT's WordPiece."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from rtp_llm.model_folder import ModelFilesError, read_text

VOCABULARY = "vocab.txt"
_LONGEST_WORD = 100  # characters; a longer one is unknown
# Names of special tokens in tokenizer_config.json, and what BERT calls them.
_SPECIAL = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
# Tokenizer classes that join two texts by two separators, as RoBERTa does.
_TWO_SEPARATORS = ("MPNetTokenizer", "MPNetTokenizerFast")


def read_wordpiece(
    folder: Path, config: Mapping[str, Any], special: Mapping[str, str]
) -> tokenizers.Tokenizer:
    """Build the tokenizer of vocab.txt, a token a line, as transformers does.

    `config` is tokenizer_config.json, `special` has the tokens that the folder names.
    Raises ModelFilesError for a vocabulary without a special token that prompts need.
    """
    file = folder / VOCABULARY
    lines = read_text(file).split("\n")
    vocabulary = {line.rstrip("\r"): number for number, line in enumerate(lines) if line}
    return make_wordpiece(vocabulary, config, special, file)


def make_wordpiece(
    vocabulary: dict[str, int], config: Mapping[str, Any], special: Mapping[str, str], file: Path
) -> tokenizers.Tokenizer:
    """Build the tokenizer of a vocabulary that `file` holds, with ## before what goes on a word;
    the rest is as in `read_wordpiece`."""
    names = {**_SPECIAL, **special}
    unknown, separator, first = (names[key] for key in ("unk_token", "sep_token", "cls_token"))
    for token in (unknown, separator, first):
        if token not in vocabulary:
            raise ModelFilesError(f"{file} has no token {token}")
    backend = tokenizers.Tokenizer(
        models.WordPiece(vocabulary, unk_token=unknown, max_input_chars_per_word=_LONGEST_WORD)
    )
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=config.get("tokenize_chinese_chars", True) is not False,
        strip_accents=config.get("strip_accents"),
        lowercase=config.get("do_lower_case", True) is not False,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    known = [names[key] for key in _SPECIAL if names[key] in vocabulary]
    backend.add_special_tokens([tokenizers.AddedToken(each, special=True) for each in known])
    end, begin = (separator, vocabulary[separator]), (first, vocabulary[first])
    if config.get("tokenizer_class") in _TWO_SEPARATORS:
        backend.post_processor = processors.RobertaProcessing(
            end, begin, trim_offsets=False, add_prefix_space=False
        )
    else:
        backend.post_processor = processors.BertProcessing(end, begin)
    return backend
