# SPDX-License-Identifier: Apache-2.0
"""What a draft model is loaded with, beside the model that it drafts for."""

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
    """Number types and positions of the target's options; weights as the draft's folder has them.

    They share blocks of the KV cache, and a sequence may be as long as the target takes it. Every
    tensor-parallel rank of the target has all of the draft model: it is small, and sums over the
    ranks would take it longer than what they save.
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
        fp8_weights=frozenset(),
        tensor_parallel=SINGLE,
    )


def check_tokens(target: str | Path, draft: str | Path) -> None:
    """Raise UnsupportedModelError where tokenizer.json of two folders have other tokens.

    Those that are added to a vocabulary may differ: they stand behind it, and a draft is verified.
    """
    one, other = _vocabulary(Path(target)), _vocabulary(Path(draft))
    if one is not None and other is not None and one != other:
        raise refuse("draft model of another vocabulary", f"tokenizer.json in {draft}")


def _vocabulary(folder: Path) -> object:
    """What tokenizer.json has: tokens with their ids, in the form of its kind; None: nothing."""
    model = read_json(folder / "tokenizer.json").get("model")
    return model.get("vocab") if isinstance(model, dict) else None
