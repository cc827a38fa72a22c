# SPDX-License-Identifier: Apache-2.0
"""How embeddings of a model are pooled."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from rtp_llm.text.pooling_config import MODULES, PoolingConfig, read_pooling

if TYPE_CHECKING:
    from rtp_llm.models.config import ModelConfig

_logger = logging.getLogger("rtp_llm.engine")


def model_pooling(folder: str, config: ModelConfig) -> PoolingConfig:
    """What the folder says; else the last token's state of a decoder, and the mean of an encoder's,
    as in sentence-transformers. Raises ModelFilesError."""
    if config.encoder is None:
        return read_pooling(folder)
    if not (Path(folder) / MODULES).exists():
        _logger.warning("%s has no %s: embeddings are normalised means", folder, MODULES)
    return read_pooling(folder, "mean")
