# SPDX-License-Identifier: Apache-2.0
"""The options that a draft model is loaded with, derived from its target model."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rtp_llm.distributed.tensor_parallel import SINGLE
from rtp_llm.gguf import is_gguf, language_model
from rtp_llm.gguf.tokens import BYTE, NORMAL, read_tokens
from rtp_llm.model_folder import read_json
from rtp_llm.models.causal_lm import ModelOptions
from rtp_llm.models.config import ModelConfig
from rtp_llm.models.refusals import refuse

_logger = logging.getLogger("rtp_llm.loader")


def draft_options(target: ModelOptions, draft: ModelConfig) -> ModelOptions:
    """Options with the target's dtypes and positions, and weights as the draft's folder has them.

    Both models share blocks of the KV cache, and sequences may be as long as the target allows.
    Every tensor-parallel rank holds the whole draft model: it is small, and all-reduces would cost
    more time than they save.
    """
    if target.num_positions > draft.context_limit:
        _logger.warning(
            "the draft model was made for %d positions: beyond that its drafts are right less "
            "often; answers stay the same",
            draft.context_limit,
        )
    settings = replace(target.settings, quantization="none", moe_strategy="auto")
    return replace(
        target,
        settings=settings,
        experts=None,
        formats={},
        tensor_parallel=SINGLE,
    )


def check_tokens(target: str | Path, draft: str | Path) -> None:
    """Raise UnsupportedModelError if a token of either vocabulary has another id in the other one.

    Vocabularies are those of tokenizer.json or of a GGUF file; a model without one is not checked.
    Added tokens may differ: their ids follow the vocabulary, and drafts are verified anyway.
    """
    one, other = _vocabulary(Path(target)), _vocabulary(Path(draft))
    if one is None or other is None or (one.has(other.normal) and other.has(one.normal)):
        return
    where = draft if is_gguf(draft) else f"tokenizer.json in {draft}"
    raise refuse("draft model of another vocabulary", str(where))


@dataclass(frozen=True)
class _Vocabulary:
    """Ids of tokens: the `normal` ones, and those that were added or have another type."""

    normal: Mapping[str, int]
    others: Mapping[str, int]

    def has(self, tokens: Mapping[str, int]) -> bool:
        """Whether each of `tokens` has the same id here."""
        return tokens == self.normal or all(
            self.normal.get(text, self.others.get(text)) == number
            for text, number in tokens.items()
        )


def _vocabulary(folder: Path) -> _Vocabulary | None:
    if is_gguf(folder):
        tokens = read_tokens(language_model(folder).metadata)
        if tokens is None:
            return None
        normal = np.isin(tokens.kinds, (NORMAL, BYTE)).tolist()
        parts: tuple[dict[str, int], dict[str, int]] = {}, {}
        for number, (text, is_normal) in enumerate(zip(tokens.texts, normal, strict=True)):
            parts[not is_normal][text] = number
        return _Vocabulary(*parts)
    file = read_json(folder / "tokenizer.json")
    try:
        vocabulary = file["model"]["vocab"]
        if isinstance(vocabulary, list):  # of [text, score]
            vocabulary = {text: number for number, (text, _) in enumerate(vocabulary)}
        added = {each["content"]: each["id"] for each in file.get("added_tokens", ())}
    except (LookupError, TypeError, ValueError):  # no tokenizer reads it
        return None
    return _Vocabulary(vocabulary, added) if isinstance(vocabulary, dict) else None
