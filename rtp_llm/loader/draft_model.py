# SPDX-License-Identifier: Apache-2.0
"""The options that a draft model is loaded with, derived from its target model."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from rtp_llm.distributed.tensor_parallel import SINGLE
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
    """Raise UnsupportedModelError if the two folders' tokenizer.json have different vocabularies.

    Added tokens may differ: their ids follow the vocabulary, and drafts are verified anyway.
    """
    one, other = _vocabulary(Path(target)), _vocabulary(Path(draft))
    if one is not None and other is not None and one != other:
        raise refuse("draft model of another vocabulary", f"tokenizer.json in {draft}")


def _vocabulary(folder: Path) -> object:
    """The vocabulary in tokenizer.json, tokens with their ids, or None without one."""
    model = read_json(folder / "tokenizer.json").get("model")
    return model.get("vocab") if isinstance(model, dict) else None
