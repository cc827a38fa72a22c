# SPDX-License-Identifier: Apache-2.0
"""The protocol between the HTTP process and a preparation process.

A frame is two lengths (unsigned 32-bit), a msgpack head, and a tail of raw bytes: the body in one
direction, token ids or a JSON answer in the other, so that a million ids are not a million objects.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache
from typing import Any, cast

import msgspec

from rtp_llm.server.turn.body_kind import BodyKind, P
from rtp_llm.server.turn.prepared import Prepared, PreparedBody, PreparedJobs, PreparedPrompts
from rtp_llm.server.turn.served_model import ModelFacts, ServedModel
from rtp_llm.server.types.errors import ApiError
from rtp_llm.server.types.jobs import CompletionResponseOptions, Echo

LENGTHS = struct.Struct("<II")
# Size limit of an answer, as a malicious request could expand a small body.
MAX_ANSWER_BYTES = 64 * 2**20


class Call(msgspec.Struct, frozen=True):
    """A body to prepare, which is the tail. `kind`: name of a BodyKind; `memory_bytes`: its memory
    limit."""

    kind: str
    facts: ModelFacts
    memory_bytes: int


class Refusal(msgspec.Struct, frozen=True):
    """An ApiError."""

    status: int
    message: str
    kind: str
    param: str | None
    code: str | None
    headers: dict[str, str]


class Answer(msgspec.Struct, frozen=True):
    """The result of a call: a refusal, `prepared` jobs or prompts, or else the tail is the answer.

    `prepared`: an encoded PreparedJobs, or PreparedPrompts; `options_index`: which of its kind's
    `response_options` it has; `lengths`: lengths of the integer lists in the tail: each prompt,
    then each echo's offsets (prompts to pool: the tail is their `token_ids`); `sources`: the jobs'
    different sources of grammars, and `source_of`: the index of each job's, if there are any.
    `ignored`: if the tail is the answer.
    """

    refusal: Refusal | None = None
    prepared: bytes = b""
    options_index: int = 0
    lengths: list[int] = []
    sources: list[bytes] = []
    source_of: list[int] = []
    ignored: tuple[str, ...] = ()


def frame(head: msgspec.Struct, tail: bytes = b"") -> list[bytes]:
    """The parts of a frame, to be written in order."""
    encoded = msgspec.msgpack.encode(head)
    return [LENGTHS.pack(len(encoded), len(tail)), encoded, tail]


def facts_of(model: ServedModel) -> ModelFacts:
    """The model's facts without the tokenizer, as each process has its own."""
    return ModelFacts(**{each.name: getattr(model, each.name) for each in fields(ModelFacts)})


def refuse(error: ApiError) -> list[bytes]:
    """The frame of an ApiError."""
    refusal = Refusal(
        error.status, error.message, error.kind, error.param, error.code, error.headers
    )
    return frame(Answer(refusal=refusal))


def pack(kind: BodyKind[Prepared], prepared: Prepared) -> list[bytes]:
    """The frame of a result of this kind."""
    if isinstance(prepared, PreparedBody):
        return frame(Answer(ignored=prepared.ignored), prepared.body)
    if isinstance(prepared, PreparedPrompts):
        return _pack_prompts(kind, prepared)
    lists: list[Sequence[int]] = [job.prompt_ids for job in prepared.jobs]
    sources = list(dict.fromkeys(job.grammar_source for job in prepared.jobs))
    jobs = [replace(job, prompt_ids=[], grammar_source=b"") for job in prepared.jobs]
    bare = replace(prepared, jobs=jobs)
    if (
        isinstance(bare.response_options, CompletionResponseOptions)
        and bare.response_options.echoes is not None
    ):
        echoes = bare.response_options.echoes
        lists += [echo.offsets for echo in echoes]
        response_options = replace(
            bare.response_options, echoes=[Echo(echo.text, [], []) for echo in echoes]
        )
        bare = replace(bare, response_options=response_options)
    answer = Answer(
        prepared=msgspec.msgpack.encode(bare),
        options_index=kind.response_options.index(type(bare.response_options)),
        lengths=[len(each) for each in lists],
        sources=sources,
        source_of=[sources.index(job.grammar_source) for job in prepared.jobs],
    )
    return frame(answer, b"".join(array("i", each).tobytes() for each in lists))


def _pack_prompts(kind: BodyKind[Prepared], prepared: PreparedPrompts[Any]) -> list[bytes]:
    bare = replace(prepared, batch=replace(prepared.batch, token_ids=b""))
    answer = Answer(
        prepared=msgspec.msgpack.encode(bare),
        options_index=kind.response_options.index(type(prepared.response_options)),
    )
    return frame(answer, prepared.batch.token_ids)


def unpack(kind: BodyKind[P], head: bytes, tail: bytes) -> P:
    """The result in a frame; raises the ApiError if the frame contains one."""
    answer = _answers.decode(head)
    if answer.refusal is not None:
        raise _api_error(answer.refusal)
    if not answer.prepared:
        return cast("P", PreparedBody(tail, answer.ignored))
    options = kind.response_options[answer.options_index]
    if kind.pools:
        pooled = _prompts_decoder(options).decode(answer.prepared)
        return cast("P", replace(pooled, batch=replace(pooled.batch, token_ids=tail)))
    prepared = _decoder(options).decode(answer.prepared)
    sources = [answer.sources[index] for index in answer.source_of]
    return cast("P", _filled(prepared, _lists(answer.lengths, tail), sources))


_answers = msgspec.msgpack.Decoder(Answer)


@cache
def _decoder(response_options: type) -> msgspec.msgpack.Decoder[PreparedJobs[Any]]:
    return msgspec.msgpack.Decoder(PreparedJobs[response_options])  # type: ignore[valid-type]


@cache
def _prompts_decoder(response_options: type) -> msgspec.msgpack.Decoder[PreparedPrompts[Any]]:
    return msgspec.msgpack.Decoder(PreparedPrompts[response_options])  # type: ignore[valid-type]


def _api_error(refusal: Refusal) -> ApiError:
    return ApiError(
        refusal.status,
        refusal.message,
        kind=refusal.kind,
        param=refusal.param,
        code=refusal.code,
        headers=refusal.headers,
    )


def _lists(lengths: list[int], tail: bytes) -> list[list[int]]:
    lists: list[list[int]] = []
    view = memoryview(tail).cast("i") if lengths else memoryview(b"")
    start = 0
    for length in lengths:
        lists.append(view[start : start + length].tolist())
        start += length
    return lists


def _filled(
    prepared: PreparedJobs[Any], lists: list[list[int]], sources: list[bytes]
) -> PreparedJobs[Any]:
    """The result with the token ids of prompts, sources of grammars and offsets of echoes."""
    jobs = [
        replace(job, prompt_ids=ids, grammar_source=source)
        for job, ids, source in zip(prepared.jobs, lists, sources, strict=False)
    ]
    response_options = prepared.response_options
    if (
        isinstance(response_options, CompletionResponseOptions)
        and response_options.echoes is not None
    ):
        offsets = lists[len(jobs) :]
        echoes = [
            Echo(echo.text, job.prompt_ids, each)
            for echo, job, each in zip(response_options.echoes, jobs, offsets, strict=True)
        ]
        response_options = replace(response_options, echoes=echoes)
    return replace(prepared, jobs=jobs, response_options=response_options)
