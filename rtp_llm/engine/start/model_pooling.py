# SPDX-License-Identifier: Apache-2.0
"""How embeddings of a model are pooled."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from rtp_llm.gguf import is_gguf
from rtp_llm.text.pooling_config import MODULES, PoolingConfig, gguf_pooling, read_pooling

if TYPE_CHECKING:
    from rtp_llm.models.config import ModelConfig

_logger = logging.getLogger("rtp_llm.engine")


def model_pooling(folder: str, config: ModelConfig) -> PoolingConfig:
    """What the folder or GGUF file says; else the last token's state of a decoder, and the mean of
    an encoder's, as in sentence-transformers. Raises ModelFilesError."""
    if config.encoder is None:
        return read_pooling(folder)
    if is_gguf(folder):
        place, is_there = "pooling_type", gguf_pooling(folder) is not None
    else:
        place, is_there = MODULES, (Path(folder) / MODULES).exists()
    if not is_there:
        _logger.warning("%s has no %s: embeddings are normalised means", folder, place)
    return read_pooling(folder, "mean")
