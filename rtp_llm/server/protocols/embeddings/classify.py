# SPDX-License-Identifier: Apache-2.0
"""POST /classify and /pooling: probabilities of labels, and all that models pool, as in vLLM."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from rtp_llm.request.params import POOLING_TASKS
from rtp_llm.server.endpoint.pooled_answer import Pooled, PooledEndpoint, separated
from rtp_llm.server.protocols.embeddings import bodies
from rtp_llm.server.protocols.embeddings.openai import encoder, list_inputs
from rtp_llm.server.protocols.embeddings.score import list_fields
from rtp_llm.server.turn.body_kind import BodyKind
from rtp_llm.server.turn.parse import parse_request
from rtp_llm.server.turn.pooled_prompts import check_dimensions, pooling_params
from rtp_llm.server.turn.prepared import PreparedBody, PreparedPrompts
from rtp_llm.server.turn.served_model import ServedModel
from rtp_llm.server.types.errors import bad_request


@dataclass(frozen=True)
class ClassifyOptions:
    """What an answer contains. `labels`: their names, by their numbers."""

    model: str
    labels: tuple[str, ...]


@dataclass(frozen=True)
class PoolingOptions:
    """What an answer contains. `per_token`: each token has numbers; `base64`: as a text."""

    model: str
    per_token: bool = False
    base64: bool = False


def prepare_classify(
    body: bytes, model: ServedModel
) -> PreparedPrompts[ClassifyOptions] | PreparedBody:
    """Turn the body of POST /classify into prompts; raises ApiError."""
    request, ignored = parse_request(body, bodies.ClassifyRequest, model)
    params = pooling_params(
        task="classify", use_activation=request.use_activation, priority=request.priority or 0
    )
    inputs = list_inputs(request.input)
    batch = encoder(request, model, "input").batch(inputs, params, request.cache_salt)
    return PreparedPrompts(batch, ClassifyOptions(model.name, labels_of(model)), ignored)


def labels_of(model: ServedModel) -> tuple[str, ...]:
    """The names of the labels of a classifier, as far as config.json has them."""
    named = model.tokenizer.model_config.get("id2label") or {}
    return tuple(str(named[key]) for key in sorted(named, key=int))


def write_classes(options: ClassifyOptions, pooled: Pooled) -> Iterator[bytes]:
    """The answer."""
    data = []
    for index, probs in enumerate(pooled.numbers()):
        best = probs.index(max(probs))
        label = options.labels[best] if best < len(options.labels) else f"LABEL_{best}"
        data.append(
            bodies.Classified(index=index, label=label, probs=probs, num_classes=len(probs))
        )
    fields = list_fields("classify", options.model, pooled)
    yield msgspec.json.encode({**fields, "object": "list", "data": data})


def prepare_pooling(
    body: bytes, model: ServedModel
) -> PreparedPrompts[PoolingOptions] | PreparedBody:
    """Turn the body of POST /pooling into prompts; raises ApiError."""
    request, ignored = parse_request(body, bodies.PoolingRequest, model)
    tasks = [task for task in model.tasks if task in POOLING_TASKS]
    task = request.task or tasks[0]
    if task not in tasks:
        problem = f"task={task!r}: this model is served for {' and '.join(tasks)}."
        raise bad_request(problem, "task", "unsupported_task")
    check_dimensions(request.dimensions, model)
    params = pooling_params(
        task=task,
        dimensions=request.dimensions,
        normalize=request.normalize,
        use_activation=request.use_activation,
        priority=request.priority or 0,
    )
    inputs = list_inputs(request.input)
    batch = encoder(request, model, "input").batch(inputs, params, request.cache_salt)
    per_token = task in ("token_classify", "reward") and model.scored == "all"
    options = PoolingOptions(model.name, per_token, request.encoding_format == "base64")
    return PreparedPrompts(batch, options, ignored)


def write_pooled(options: PoolingOptions, pooled: Pooled) -> Iterator[bytes]:
    """The answer."""
    fields = list_fields("pool", options.model, pooled)
    yield msgspec.json.encode({**fields, "object": "list"})[:-1] + b',"data":['
    parts: Iterator[object] = pooled.numbers()
    if options.base64:
        rows = pooled.token_rows() if options.per_token else pooled.rows()
        parts = (base64.b64encode(row).decode() for row in rows)
    elif options.per_token:
        parts = pooled.token_numbers()
    yield from separated(
        msgspec.json.encode({"index": index, "object": "pooling", "data": data})
        for index, data in enumerate(parts)
    )
    yield b"]}"


CLASSIFY = PooledEndpoint(
    "/classify",
    "POST /classify: probabilities of the labels of each input.",
    BodyKind("classify", prepare_classify, (ClassifyOptions,), renders=False, pools=True),
    write_classes,
)
POOLING = PooledEndpoint(
    "/pooling",
    "POST /pooling: what the model pools of each input.",
    BodyKind("pooling", prepare_pooling, (PoolingOptions,), renders=False, pools=True),
    write_pooled,
)
