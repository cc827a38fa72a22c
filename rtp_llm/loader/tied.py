# SPDX-License-Identifier: Apache-2.0
"""Decides whether the head is really tied to the embedding, as transformers 5 does.

A checkpoint may hold both. If they are equal, they share memory; a different head overrides
config.json. If there is only a head, it is used as the embedding too.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import torch

from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.config.tasks import TaskError, served_tasks
from rtp_llm.loader.checkpoint import Checkpoint, TensorEntry
from rtp_llm.loader.read_tensor import read_numbers
from rtp_llm.models.config import ModelConfig
from rtp_llm.models.decoder import EMBEDDING, HEAD
from rtp_llm.models.refusals import UnsupportedModelError

_CHUNK_NUMBERS = 2**22

_logger = logging.getLogger("rtp_llm.loader")


def resolve_tied(
    config: ModelConfig, checkpoint: Checkpoint, dtype: torch.dtype
) -> tuple[ModelConfig, Checkpoint]:
    """Return `config` and `checkpoint` with the head and the embedding that the model uses.

    `dtype`: the dtype in which both are kept and compared.
    """
    known = checkpoint.tensors.keys() | checkpoint.unreadable.keys()
    if not config.tie_word_embeddings or HEAD not in known:
        return config, checkpoint
    if EMBEDDING not in known and HEAD in checkpoint.tensors:
        return config, _with_embedding(checkpoint)
    table, head = checkpoint.tensors.get(EMBEDDING), checkpoint.tensors.get(HEAD)
    if table is None or head is None or _are_equal(table, head, dtype):
        return config, checkpoint
    _logger.warning(
        "config.json ties %s to %s, and the checkpoint holds another one; it is used",
        HEAD,
        EMBEDDING,
    )
    return replace(config, tie_word_embeddings=False), checkpoint


def without_head(config: ModelConfig, settings: ModelSettings) -> ModelConfig:
    """Return `config` without a head of its own if no task needs logits.

    A head tied to the embedding takes no memory, and a stored one is ignored then.
    Raises UnsupportedModelError for a task that the model does not have.
    """
    try:
        tasks = served_tasks(settings.task, config.tasks)
    except TaskError as error:
        raise UnsupportedModelError(f"{config.architecture}: {error}") from error
    reads_logits = "generate" in tasks or ("score" in tasks and config.classifier is None)
    return config if reads_logits else replace(config, tie_word_embeddings=True)


def _with_embedding(checkpoint: Checkpoint) -> Checkpoint:
    """Return `checkpoint` with its head renamed to the embedding."""
    tensors = dict(checkpoint.tensors)
    tensors[EMBEDDING] = replace(tensors.pop(HEAD), name=EMBEDDING)
    return replace(checkpoint, tensors=tensors)


def _are_equal(one: TensorEntry, other: TensorEntry, dtype: torch.dtype) -> bool:
    """Whether two tensors of floats are equal in `dtype`; they are read chunk by chunk."""
    if one.shape != other.shape or not one.dtype.is_floating_point:
        return False
    count = one.size // one.dtype.itemsize
    for start in range(0, count, _CHUNK_NUMBERS):
        length = min(_CHUNK_NUMBERS, count - start)
        chunks = (read_numbers(entry, start, length).to(dtype) for entry in (one, other))
        if not torch.equal(*chunks):
            return False
    return True
