# SPDX-License-Identifier: Apache-2.0
"""POST /score: scores of pairs of texts, in vLLM's form."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from rtp_llm.server.endpoint.pooled_answer import Pooled, PooledEndpoint
from rtp_llm.server.protocols.embeddings import bodies
from rtp_llm.server.protocols.embeddings.openai import encoder
from rtp_llm.server.protocols.embeddings.scoring import score_pairs, scores_of
from rtp_llm.server.turn.body_kind import BodyKind
from rtp_llm.server.turn.parse import parse_request
from rtp_llm.server.turn.prepared import PreparedBody, PreparedPrompts
from rtp_llm.server.turn.served_model import ServedModel
from rtp_llm.server.types.errors import bad_request


@dataclass(frozen=True)
class ScoreOptions:
    """What an answer contains: `count` scores."""

    model: str
    count: int


def prepare_score(body: bytes, model: ServedModel) -> PreparedPrompts[ScoreOptions] | PreparedBody:
    """Turn the body of POST /score into prompts; raises ApiError."""
    request, ignored = parse_request(body, bodies.ScoreRequest, model)
    queries = _texts(request.queries, request.text_1, "queries", "text_1")
    documents = _texts(request.documents, request.text_2, "documents", "text_2")
    if len(queries) not in (1, len(documents)):
        raise bad_request(
            f"{len(queries)} queries and {len(documents)} documents: give one query, or as many as "
            "documents.",
            "queries",
            "invalid_value",
        )
    batch = score_pairs(
        queries,
        documents,
        encoder(request, model, "documents"),
        instruction=request.instruction,
        use_activation=request.use_activation,
        priority=request.priority or 0,
        cache_salt=request.cache_salt,
    )
    return PreparedPrompts(batch, ScoreOptions(model.name, len(documents)), ignored)


def _texts(
    given: str | list[str] | None, older: str | list[str] | None, name: str, older_name: str
) -> list[str]:
    if (given is None) == (older is None):
        raise bad_request(f"Give one of {name} and {older_name}.", name)
    found = older if given is None else given
    texts = [found] if isinstance(found, str) else found or []
    if not texts:
        raise bad_request(f"{name}: must not be empty.", name, "invalid_value")
    return texts


def list_fields(prefix: str, model: str, pooled: Pooled) -> dict[str, object]:
    """The fields of vLLM's lists besides their data."""
    tokens = pooled.prompt_tokens
    return {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "created": int(time.time()),
        "model": model,
        "usage": bodies.PooledUsage(prompt_tokens=tokens, total_tokens=tokens),
    }


def write_scores(options: ScoreOptions, pooled: Pooled) -> Iterator[bytes]:
    """The answer."""
    scores = enumerate(scores_of(pooled, options.count))
    data = [bodies.Score(index=index, score=score) for index, score in scores]
    fields = list_fields("score", options.model, pooled)
    yield msgspec.json.encode({**fields, "object": "list", "data": data})


_SCORE = BodyKind("score", prepare_score, (ScoreOptions,), renders=False, pools=True)
SCORE = tuple(
    PooledEndpoint(path, f"POST {path}: scores of pairs of texts.", _SCORE, write_scores)
    for path in ("/score", "/v1/score")
)
