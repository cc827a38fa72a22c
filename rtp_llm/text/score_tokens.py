# SPDX-License-Identifier: Apache-2.0
"""The tokens of a reranker that answers "yes" or "no"."""

from __future__ import annotations

import json
from pathlib import Path

from rtp_llm.gguf import is_gguf, language_model
from rtp_llm.gguf.tokens import find_tokens
from rtp_llm.model_folder import ModelFilesError, is_there, read_json, read_text
from rtp_llm.text.pooling_config import MODULES, read_modules

_ANSWERS = ("yes", "no")
_NO_ANSWERS = 'has no tokens "yes" and "no", from whose logits a score is made'


def read_score_tokens(folder: str | Path) -> tuple[int, int]:
    """The ids of "yes" and "no": those of the LogitScore module of sentence-transformers, or else
    of the tokenizer's tokens, also of a GGUF file.

    Raises ModelFilesError if the tokenizer has no such tokens, and for broken files.
    """
    folder = Path(folder)
    if is_gguf(folder):
        found = find_tokens(language_model(folder).metadata, _ANSWERS)
        if len(found) < len(_ANSWERS):
            raise ModelFilesError(f"{folder} {_NO_ANSWERS}")
        return found["yes"], found["no"]
    if is_there(folder / MODULES):
        for kind, path in read_modules(folder / MODULES):
            if kind == "LogitScore":
                return _named(folder / path / "config.json")
    file = folder / "tokenizer.json"
    try:
        vocabulary = json.loads(read_text(file))["model"]["vocab"]
        yes, no = (vocabulary[answer] for answer in _ANSWERS)
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ModelFilesError(f"{file} {_NO_ANSWERS}") from error
    return int(yes), int(no)


def _named(file: Path) -> tuple[int, int]:
    config = read_json(file, required=True)
    ids = config.get("true_token_id"), config.get("false_token_id")
    if not all(type(each) is int and each >= 0 for each in ids):
        raise ModelFilesError(f"{file}: true_token_id and false_token_id must be token ids")
    return int(ids[0] or 0), int(ids[1] or 0)
