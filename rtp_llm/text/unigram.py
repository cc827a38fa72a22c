# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of a folder that has sentencepiece.bpe.model and no tokenizer.json: XLM-RoBERTa's.

Despite its name the file holds a unigram model. Ids are fairseq's: <s>, <pad>, </s> and <unk> come
first, then the pieces of the file without its own <unk>, <s> and </s>, and <mask> is the last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from rtp_llm.model_folder import ModelFilesError
from rtp_llm.text.sentencepiece_model import UNIGRAM, read_sentencepiece

UNIGRAM_MODEL = "sentencepiece.bpe.model"
_CLASSES = (None, "XLMRobertaTokenizer", "XLMRobertaTokenizerFast")
_SPECIAL = {
    "bos_token": "<s>",
    "pad_token": "<pad>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
}
_UNKNOWN = 3  # the place of <unk> among them
_OWN_PIECES = 3  # at the beginning of the file
_SPACE = "▁"


def read_unigram(
    folder: Path, config: Mapping[str, Any], special: Mapping[str, str]
) -> tokenizers.Tokenizer:
    """Build the tokenizer of sentencepiece.bpe.model as transformers does.

    `config` is tokenizer_config.json, `special` has the tokens that the folder names.
    Raises ModelFilesError for a file that cannot be read or is another kind of model, and for a
    tokenizer class with other ids.
    """
    file = folder / UNIGRAM_MODEL
    if (given := config.get("tokenizer_class")) not in _CLASSES:
        raise ModelFilesError(
            f"{file}: the ids of {given} are not known here. Convert it once with transformers: "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)."
        )
    model = read_sentencepiece(file)
    if model.kind != UNIGRAM:
        raise ModelFilesError(f"{file} is no unigram model of sentencepiece: it is {model.kind}")
    pieces = [(each.text, each.score) for each in model.pieces[_OWN_PIECES:]]
    if not pieces:
        raise ModelFilesError(f"{file} is no unigram model of sentencepiece: it has no pieces")
    first, padding, last, unknown, mask = (special.get(name, _SPECIAL[name]) for name in _SPECIAL)
    vocabulary = [*((each, 0.0) for each in (first, padding, last, unknown)), *pieces, (mask, 0.0)]
    return make_unigram(vocabulary, special, _UNKNOWN, model.characters)


def make_unigram(
    vocabulary: Sequence[tuple[str, float]],
    special: Mapping[str, str],
    unknown_id: int,
    characters: bytes,
) -> tokenizers.Tokenizer:
    """Build XLM-RoBERTa's tokenizer of pieces and their scores, in the order of ids.

    `special` names the special tokens where they are not the usual ones; `characters`: the map of
    sentencepiece's normalizer, or nothing. Raises ValueError for a map that cannot be read.
    """
    backend = tokenizers.Tokenizer(
        models.Unigram([*vocabulary], unk_id=unknown_id, byte_fallback=False)
    )
    if characters:
        backend.normalizer = normalizers.Precompiled(characters)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(_SPACE, "always")]
    )
    backend.decoder = decoders.Metaspace(_SPACE, "always")
    names = {key: special.get(key, text) for key, text in _SPECIAL.items()}
    first, last, mask = (names[key] for key in ("bos_token", "eos_token", "mask_token"))
    backend.add_special_tokens(
        [
            tokenizers.AddedToken(each, special=True, lstrip=each == mask)
            for each in names.values()
            if backend.token_to_id(each) is not None
        ]
    )
    backend.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} {last} $B {last}",
        special_tokens=[(each, backend.token_to_id(each)) for each in (first, last)],
    )
    return backend
