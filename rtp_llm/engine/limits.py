# SPDX-License-Identifier: Apache-2.0
"""The limits of an engine, which requests are checked against."""

from __future__ import annotations

from dataclasses import dataclass

from rtp_llm.config.tasks import Task
from rtp_llm.request.params import PoolingParams, PoolingType


@dataclass(frozen=True)
class EngineLimits:
    """What a request must fit into, and the ids that end a sequence.

    ``embedding_width``: numbers in a row of embeddings that a request may bring; 0: it may bring
    none. ``mrope``: positions have three axes. ``token_types``: two texts of a prompt are told
    apart. ``max_mm_bytes``: of the embeddings of all requests.
    ``tasks``: what the model is served for. ``pooling`` is that of requests that leave it open.
    Embeddings have ``vector_size`` numbers; ``matryoshka``: sizes to which they may be cut, empty:
    any, None: none. ``scored``: the states that scores and labels are made from.
    """

    max_model_len: int
    vocab_size: int
    max_running: int
    max_queued: int
    eos_token_ids: tuple[int, ...]
    embedding_width: int = 0
    mrope: bool = False
    token_types: bool = False
    max_mm_bytes: int = 960 << 20  # one request's must fit in a frame between nodes
    tasks: tuple[Task, ...] = ("generate",)
    pooling: PoolingParams | None = None
    vector_size: int = 0
    matryoshka: tuple[int, ...] | None = None
    scored: PoolingType = "last"
