"""Constraints of an engine, with what the model's folder says of its tokens."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from rtp_llm.model_folder import ModelFilesError, is_there, read_bytes
from rtp_llm.worker.grammar.constraints import Constraints
from rtp_llm.worker.grammar.library import GrammarError
from rtp_llm.worker.grammar.llguidance_library import LlguidanceLibrary

if TYPE_CHECKING:
    from rtp_llm.models.config import ModelConfig

_logger = logging.getLogger("rtp_llm.engine")


def open_constraints(folder: str, config: ModelConfig, num_slots: int) -> Constraints:
    """With a library for grammars if the folder has a tokenizer, and ids that end an answer.

    Nobody else runs meanwhile: the library's tokenizer is made under the GIL, in seconds.
    """
    vocab_size, eos = config.vocab_size, config.eos_token_ids
    file = Path(folder) / "tokenizer.json"
    try:
        if not is_there(file):
            raise GrammarError(f"{folder} has no tokenizer.json, which they are compiled for")
        if not eos:
            raise GrammarError(f"the config of {folder} names no eos_token_id to end an answer")
        library = LlguidanceLibrary(read_bytes(file).decode(), vocab_size, eos)
    except (GrammarError, ModelFilesError, UnicodeDecodeError) as error:
        _logger.info("grammars are refused: %s", error)
        return Constraints(num_slots, vocab_size, eos, why_no_library=str(error))
    return Constraints(num_slots, vocab_size, eos, library)
