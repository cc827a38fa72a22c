# SPDX-License-Identifier: Apache-2.0
"""POST /rerank, /v1/rerank and /v2/rerank: documents by how well they answer a query."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from rtp_llm.server.endpoint.pooled_answer import Pooled, PooledEndpoint
from rtp_llm.server.protocols.embeddings import bodies
from rtp_llm.server.protocols.embeddings.cohere import CohereRanking
from rtp_llm.server.protocols.embeddings.openai import encoder
from rtp_llm.server.protocols.embeddings.scoring import score_pairs, scores_of
from rtp_llm.server.protocols.embeddings.tei import tei_truncation
from rtp_llm.server.turn.body_kind import BodyKind
from rtp_llm.server.turn.parse import parse_request
from rtp_llm.server.turn.pooled_prompts import Truncation
from rtp_llm.server.turn.prepared import PreparedBody, PreparedPrompts
from rtp_llm.server.turn.served_model import ServedModel
from rtp_llm.server.types.errors import bad_request


@dataclass(frozen=True)
class RerankOptions:
    """What an answer contains: the best `top_n`, with their texts if `documents` has them.
    `form`: of which API it is."""

    model: str
    count: int
    top_n: int
    documents: tuple[str, ...] = ()
    form: str = "jina"


def prepare_rerank(
    body: bytes, model: ServedModel
) -> PreparedPrompts[RerankOptions] | PreparedBody:
    """Turn the body of POST /rerank into prompts; raises ApiError."""
    return _prepare(body, model, "jina")


def prepare_cohere_rerank(
    body: bytes, model: ServedModel
) -> PreparedPrompts[RerankOptions] | PreparedBody:
    """Turn the body of POST /v2/rerank into prompts; raises ApiError."""
    return _prepare(body, model, "cohere")


def _prepare(body: bytes, model: ServedModel, form: str) -> PreparedPrompts[RerankOptions]:
    request, ignored = parse_request(body, bodies.RerankRequest, model)
    if (request.documents is None) == (request.texts is None):
        raise bad_request("Give one of documents and texts.", "documents")
    if request.texts is not None:
        form, name, documents = "tei", "texts", request.texts
        returns = bool(request.return_text)
    else:
        given, name = request.documents or (), "documents"
        documents = [each if isinstance(each, str) else each.text for each in given]
        returns = form == "jina" if request.return_documents is None else request.return_documents
    if not documents:
        raise bad_request(f"{name}: must not be empty.", name, "invalid_value")
    if request.top_n is not None and request.top_n < 0:
        raise bad_request("top_n must not be negative; 0 returns all.", "top_n", "invalid_value")
    encodes = encoder(request, model, name)
    encodes.truncation = _truncation(request, form, model)
    batch = score_pairs(
        [request.query],
        documents,
        encodes,
        instruction=request.instruction,
        use_activation=False if request.raw_scores else None,
        priority=request.priority or 0,
        cache_salt=request.cache_salt,
    )
    count = len(documents)
    shown = tuple(documents) if returns else ()
    options = RerankOptions(model.name, count, request.top_n or count, shown, form)
    return PreparedPrompts(batch, options, ignored)


def _truncation(request: bodies.RerankRequest, form: str, model: ServedModel) -> Truncation:
    if request.truncate_prompt_tokens is not None:
        return Truncation(request.truncate_prompt_tokens, request.truncation_side or "right")
    if form == "tei":
        return tei_truncation(request.truncate, request.truncation_direction)
    if request.max_tokens_per_doc is not None:
        fits = request.max_tokens_per_doc >= model.limits.max_model_len
        return Truncation(-1 if fits else request.max_tokens_per_doc, name="max_tokens_per_doc")
    return Truncation(-1) if form == "cohere" else Truncation()


def write_ranking(options: RerankOptions, pooled: Pooled) -> Iterator[bytes]:
    """The answer."""
    scores = scores_of(pooled, options.count)
    best = sorted(enumerate(scores), key=lambda each: -each[1])[: options.top_n]
    texts, tokens = options.documents, pooled.prompt_tokens
    if options.form == "tei":
        shown = [
            bodies.RankedText(index=at, score=score, text=texts[at] if texts else None)
            for at, score in best
        ]
        yield msgspec.json.encode(shown)
        return
    results = [
        bodies.RankedDocument(
            index=at,
            relevance_score=score,
            document=bodies.Document(text=texts[at]) if texts else None,
        )
        for at, score in best
    ]
    number = f"rerank-{uuid.uuid4().hex}"
    if options.form == "cohere":
        meta = {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}}
        yield msgspec.json.encode(CohereRanking(id=number, results=results, meta=meta))
        return
    usage = bodies.PooledUsage(prompt_tokens=tokens, total_tokens=tokens)
    yield msgspec.json.encode(
        bodies.Ranking(id=number, model=options.model, usage=usage, results=results)
    )


_RERANK = BodyKind("rerank", prepare_rerank, (RerankOptions,), renders=False, pools=True)
RERANK = tuple(
    PooledEndpoint(path, f"POST {path}: documents by their relevance.", _RERANK, write_ranking)
    for path in ("/rerank", "/v1/rerank")
)
COHERE_RERANK = PooledEndpoint(
    "/v2/rerank",
    "POST /v2/rerank: the same in Cohere's form.",
    BodyKind("cohere_rerank", prepare_cohere_rerank, (RerankOptions,), renders=False, pools=True),
    write_ranking,
)
