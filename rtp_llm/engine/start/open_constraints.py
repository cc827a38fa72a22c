# SPDX-License-Identifier: Apache-2.0
"""Constraints of an engine, with what the model's folder says about its tokens."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from rtp_llm.gguf import is_gguf
from rtp_llm.model_folder import ModelFilesError, is_there
from rtp_llm.text.grammar import GrammarError
from rtp_llm.text.grammar.vocabulary import make_vocabulary
from rtp_llm.text.tokenizer import Tokenizer
from rtp_llm.worker.grammar.constraints import Constraints
from rtp_llm.worker.grammar.llguidance_library import LlguidanceLibrary

if TYPE_CHECKING:
    from rtp_llm.models.config import ModelConfig

_logger = logging.getLogger("rtp_llm.engine")


def open_constraints(folder: str, config: ModelConfig, num_slots: int) -> Constraints:
    """With a library for grammars if the model has a tokenizer, and ids that end an answer.

    The tokens are those for which the grammars of requests are written and checked, including
    special ones. Nothing else runs meanwhile: the library's tokenizer is made under the GIL, 2.4 s
    for 130,000 tokens.
    """
    vocab_size, eos = config.vocab_size, config.eos_token_ids
    file = Path(folder) / "tokenizer.json"
    try:
        if not is_gguf(folder) and not is_there(file):
            raise GrammarError(f"{folder} has no tokenizer.json, which they are compiled for")
        if not eos:
            raise GrammarError(f"the config of {folder} names no eos_token_id to end an answer")
        tokenizer = make_vocabulary(Tokenizer.from_folder(folder), eos, vocab_size)
        library = LlguidanceLibrary(tokenizer)
    except (GrammarError, ModelFilesError) as error:
        _logger.info("grammars are refused: %s", error)
        return Constraints(num_slots, vocab_size, eos, why_no_library=str(error))
    return Constraints(num_slots, vocab_size, eos, library)
