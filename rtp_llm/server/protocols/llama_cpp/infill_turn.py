# SPDX-License-Identifier: Apache-2.0
"""POST /infill: turns a body into an engine job."""

from __future__ import annotations

from typing import Any

from rtp_llm.server.protocols.llama_cpp.prompt import infill_prompt
from rtp_llm.server.protocols.llama_cpp.protocol import InfillRequest
from rtp_llm.server.protocols.llama_cpp.response_options import InfillResponseOptions
from rtp_llm.server.turn.body_kind import BodyKind
from rtp_llm.server.turn.completion import completion_jobs
from rtp_llm.server.turn.constraint import constraint_of
from rtp_llm.server.turn.fill_in_middle import with_ends
from rtp_llm.server.turn.grammar_source import encoded
from rtp_llm.server.turn.llama_sampling import in_their_names, sampling_of, unsupported
from rtp_llm.server.turn.parse import parse_request
from rtp_llm.server.turn.prepared import PreparedJobs
from rtp_llm.server.turn.sampling import Lengths
from rtp_llm.server.turn.served_model import ServedModel
from rtp_llm.server.types.bounds import check_count
from rtp_llm.server.types.errors import ApiError, bad_request
from rtp_llm.server.types.jobs import AnswerOptions
from rtp_llm.server.types.openai_bodies import CompletionRequest
from rtp_llm.text.fill_in_middle import FillInMiddle, fill_in_middle

MAX_EXTRA = 1024  # pieces of other files
MAX_INDENT = 100
# Samplers by their letter, and the fields that have no effect if the sampler is not listed.
_LETTERS = {
    "k": "top_k",
    "p": "top_p",
    "m": "min_p",
    "y": "typ_p",
    "t": "temperature",
    "i": "infill",
}
_OFF: dict[str, dict[str, Any]] = {
    "top_k": {"top_k": 0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "typ_p": {"typical_p": 1.0},
}


def prepare_infill(body: bytes, model: ServedModel) -> PreparedJobs[InfillResponseOptions]:
    """Prepare the body of POST /infill; raises ApiError."""
    request, ignored = parse_request(body, InfillRequest, model)
    tokens = _tokens(model)
    _check(request)
    requested = CompletionRequest(prompt="", **_fields(request))
    grammar = constraint_of(requested)
    requested = with_ends(requested, tokens)
    lengths = _lengths(request, model)
    ids, truncated = infill_prompt(request, tokens, model, _room(lengths, model))
    drop = request.n_predict == 0
    if drop:
        requested.max_tokens, requested.echo = 0, True
    else:
        requested.max_tokens = lengths.resolve(len(ids), model.limits)
    with in_their_names():
        source = b"" if drop else encoded(grammar)
        jobs = completion_jobs(
            requested, model, [(None, ids)], AnswerOptions(), grammar_source=source
        )
    response_options = InfillResponseOptions(
        model=model.name,
        fields=tuple(request.response_fields or ()),
        show_tokens=bool(request.return_tokens),
        drop_answer=drop,
        truncated=truncated,
        indent_pattern=_indent_pattern(request),
        predict_seconds=(request.t_max_predict_ms or 0) / 1000,
    )
    if "infill" in (_samplers(request) or ()):
        ignored = (*ignored, "samplers")
    return PreparedJobs(jobs, bool(request.stream), response_options, ignored)


INFILL = BodyKind(
    "infill", prepare_infill, response_options=(InfillResponseOptions,), renders=False
)


def _tokens(model: ServedModel) -> FillInMiddle:
    found = fill_in_middle(model.tokenizer, model.limits.vocab_size)
    if found is None:
        raise ApiError(
            400,
            "Infill is not supported by this model: its vocabulary has no tokens for the prefix, "
            "the suffix and the middle. Serve a model of code that has them.",
            code="unsupported",
        )
    return found


def _check(request: InfillRequest) -> None:
    check_count("input_extra", len(request.input_extra or ()), MAX_EXTRA, "pieces")
    for name in ("logit_bias", "n_probs", "lora"):
        if getattr(request, name):
            raise unsupported(name, "not available with /infill. Leave it out.")
    if not 0 <= (request.n_indent or 0) <= MAX_INDENT:
        text = f"n_indent: {request.n_indent} must be between 0 and {MAX_INDENT}."
        raise bad_request(text, "n_indent", "invalid_value")
    if request.n_predict is not None and request.n_predict < -1:
        text = f"n_predict: {request.n_predict} must be -1 or more."
        raise bad_request(text, "n_predict", "invalid_value")


def _fields(request: InfillRequest) -> dict[str, Any]:
    """The fields of an equivalent completion request."""
    fields = sampling_of(request)
    samplers = _samplers(request)
    if samplers is not None:
        for name, off in _OFF.items():
            fields |= {} if name in samplers else off
        if "temperature" not in samplers:
            # llama.cpp's sampler of this name only keeps the most likely tokens.
            fields["temperature"] = 0.0 if "infill" in samplers else 1.0
    if pattern := _indent_pattern(request):
        fields["stop_regex"] = pattern
    return fields | {
        "ignore_eos": request.ignore_eos,
        "grammar": request.grammar or None,
        "json_schema": request.json_schema or None,
    }


def _samplers(request: InfillRequest) -> list[str] | None:
    """The requested samplers; None: the default ones."""
    given = request.samplers
    return [_LETTERS.get(each, each) for each in given] if given else None


def _indent_pattern(request: InfillRequest) -> str:
    """A pattern for a line break that is not followed by enough white space."""
    least = request.n_indent or 0
    return rf"\n[ \t]{{0,{least - 1}}}[^ \t]" if least else ""


def _lengths(request: InfillRequest, model: ServedModel) -> Lengths:
    requested = request.n_predict
    default = model.defaults.max_tokens if requested is None else None
    most = requested if requested is not None and requested > 0 else None
    return Lengths("input_prefix", "n_predict", most, default, clamp=True)


def _room(lengths: Lengths, model: ServedModel) -> int:
    """Number of tokens available for the prompt: at least half of the context."""
    context = model.limits.max_model_len
    wanted = lengths.requested or lengths.default or context // 4
    return context - min(wanted, context // 2)
