# SPDX-License-Identifier: Apache-2.0
"""POST /embed, /predict and /similarity, in the form of Text Embeddings Inference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from rtp_llm.server.endpoint.pooled_answer import Pooled, PooledEndpoint, separated
from rtp_llm.server.protocols.embeddings.bodies import Inputs
from rtp_llm.server.protocols.embeddings.classify import labels_of
from rtp_llm.server.protocols.embeddings.openai import list_inputs
from rtp_llm.server.protocols.embeddings.scoring import scores_of
from rtp_llm.server.turn.body_kind import BodyKind
from rtp_llm.server.turn.parse import parse_request
from rtp_llm.server.turn.pooled_prompts import (
    Input,
    PromptEncoder,
    Truncation,
    check_dimensions,
    pooling_params,
    with_prompt,
)
from rtp_llm.server.turn.prepared import PreparedBody, PreparedPrompts
from rtp_llm.server.turn.served_model import ServedModel
from rtp_llm.server.types.errors import bad_request


def tei_truncation(truncate: bool | None, direction: str | None) -> Truncation:
    """What becomes of texts that are too long, by the fields of `TeiOptions`."""
    return Truncation(-1 if truncate else None, (direction or "right").lower(), "truncate")


class TeiOptions(msgspec.Struct, kw_only=True):
    """Fields of all. `truncate`: cut longer texts, instead of refusing them;
    `truncation_direction`: where."""

    truncate: bool | None = None
    truncation_direction: Literal["left", "right", "Left", "Right"] | None = None

    def truncation(self) -> Truncation:
        """What becomes of texts that are too long."""
        return tei_truncation(self.truncate, self.truncation_direction)


class TeiParameters(TeiOptions, kw_only=True):
    """`prompt_name`: of the model's text before each input, None: its default."""

    prompt_name: str | None = None


class TeiEmbedRequest(TeiParameters, kw_only=True):
    """POST /embed."""

    inputs: Inputs
    normalize: bool | None = None
    dimensions: int | None = None


class TeiPredictRequest(TeiOptions, kw_only=True):
    """POST /predict: labels of a text, of a pair of texts, or of several of both. `raw_scores`:
    instead of probabilities."""

    inputs: str | list[str | list[str]]
    raw_scores: bool | None = None


class TeiSentences(msgspec.Struct, kw_only=True):
    """What is compared."""

    source_sentence: str
    sentences: list[str]


class TeiSimilarityRequest(msgspec.Struct, kw_only=True):
    """POST /similarity: how alike each sentence and the source are."""

    inputs: TeiSentences
    parameters: TeiParameters | None = None


class TeiLabel(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A label, the likeliest first."""

    score: float
    label: str


@dataclass(frozen=True)
class TeiEmbedOptions:
    """Nothing: an answer has vectors only."""


@dataclass(frozen=True)
class PredictOptions:
    """What an answer contains; `single`: of one input, without a list around it."""

    labels: tuple[str, ...]
    single: bool


@dataclass(frozen=True)
class SimilarityOptions:
    """What an answer contains: `count` numbers."""

    count: int


def prepare_embed(
    body: bytes, model: ServedModel
) -> PreparedPrompts[TeiEmbedOptions] | PreparedBody:
    """Turn the body of POST /embed into prompts; raises ApiError."""
    request, ignored = parse_request(body, TeiEmbedRequest, model)
    check_dimensions(request.dimensions, model)
    normalize = request.normalize is not False
    params = pooling_params(normalize=normalize, dimensions=request.dimensions)
    inputs = with_prompt(list_inputs(request.inputs, "inputs"), request.prompt_name, model)
    batch = PromptEncoder(model, "inputs", request.truncation()).batch(inputs, params)
    return PreparedPrompts(batch, TeiEmbedOptions(), ignored)


def write_vectors(_options: TeiEmbedOptions, pooled: Pooled) -> Iterator[bytes]:
    """The answer."""
    yield b"["
    yield from separated(map(msgspec.json.encode, pooled.numbers()))
    yield b"]"


def prepare_predict(
    body: bytes, model: ServedModel
) -> PreparedPrompts[PredictOptions] | PreparedBody:
    """Turn the body of POST /predict into prompts; raises ApiError."""
    request, ignored = parse_request(body, TeiPredictRequest, model)
    given, single = request.inputs, True
    inputs: list[Input]
    if isinstance(given, str):
        inputs = [given]
    elif len(given) == 2 and all(isinstance(each, str) for each in given):
        inputs = [_pair(given)]
    else:
        inputs, single = [_pair([each] if isinstance(each, str) else each) for each in given], False
    task = "classify" if "classify" in model.tasks else "score"
    params = pooling_params(task=task, use_activation=not request.raw_scores)
    batch = PromptEncoder(model, "inputs", request.truncation()).batch(inputs, params)
    return PreparedPrompts(batch, PredictOptions(labels_of(model), single), ignored)


def _pair(texts: Sequence[Any]) -> Input:
    if not 1 <= len(texts) <= 2:
        raise bad_request("inputs: an input is a text, or two.", "inputs", "invalid_value")
    return texts[0] if len(texts) == 1 else (texts[0], texts[1])


def write_labels(options: PredictOptions, pooled: Pooled) -> Iterator[bytes]:
    """The answer."""
    answers = []
    for numbers in pooled.numbers():
        names = options.labels if len(options.labels) == len(numbers) else ()
        labels = [
            TeiLabel(score=score, label=names[at] if names else f"LABEL_{at}")
            for at, score in enumerate(numbers)
        ]
        answers.append(sorted(labels, key=lambda each: -each.score))
    yield msgspec.json.encode(answers[0] if options.single else answers)


def prepare_similarity(
    body: bytes, model: ServedModel
) -> PreparedPrompts[SimilarityOptions] | PreparedBody:
    """Turn the body of POST /similarity into prompts; raises ApiError."""
    request, ignored = parse_request(body, TeiSimilarityRequest, model)
    options = request.parameters or TeiParameters()
    sentences = request.inputs.sentences
    if not sentences:
        raise bad_request("inputs.sentences: must not be empty.", "inputs", "invalid_value")
    source, *others = with_prompt(
        [request.inputs.source_sentence, *sentences], options.prompt_name, model
    )
    encoder = PromptEncoder(model, "inputs", options.truncation())
    params = pooling_params(normalize=True)
    batch = encoder.batch([source, *others], params)
    return PreparedPrompts(batch, SimilarityOptions(len(sentences)), ignored)


def write_similarities(options: SimilarityOptions, pooled: Pooled) -> Iterator[bytes]:
    """The answer."""
    yield msgspec.json.encode(scores_of(pooled, options.count))


EMBED = PooledEndpoint(
    "/embed",
    "POST /embed: vectors, in TEI's form.",
    BodyKind("tei_embed", prepare_embed, (TeiEmbedOptions,), renders=False, pools=True),
    write_vectors,
)
PREDICT = PooledEndpoint(
    "/predict",
    "POST /predict: labels with their probabilities, in TEI's form.",
    BodyKind("tei_predict", prepare_predict, (PredictOptions,), renders=False, pools=True),
    write_labels,
)
SIMILARITY = PooledEndpoint(
    "/similarity",
    "POST /similarity: how alike sentences are, in TEI's form.",
    BodyKind("tei_similarity", prepare_similarity, (SimilarityOptions,), renders=False, pools=True),
    write_similarities,
)
