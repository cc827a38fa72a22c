# SPDX-License-Identifier: Apache-2.0
"""What the HTTP process and a preparation process say to each other.

A frame is two lengths (unsigned 32-bit), a msgpack head, and a tail of plain bytes: the body one
way; token ids or a whole JSON answer the other, so that a million ids are not a million objects.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, Literal, TypeVar

import msgspec

from rtp_llm.server.anthropic.preparation import prepare_count, prepare_message
from rtp_llm.server.errors import ApiError
from rtp_llm.server.llama_cpp.preparation import prepare_infill
from rtp_llm.server.ollama.preparation import prepare_ollama_chat, prepare_ollama_generate
from rtp_llm.server.prepare.chat import prepare_chat
from rtp_llm.server.prepare.chat_batch import prepare_chat_batch
from rtp_llm.server.prepare.completion import prepare_completion
from rtp_llm.server.prepare.generate_request import render_chat, render_completion
from rtp_llm.server.prepare.grammar_source import prepare_grammar
from rtp_llm.server.prepare.invocation import prepare_invocation
from rtp_llm.server.prepare.jobs import Echo
from rtp_llm.server.prepare.prepared import (
    Prepared,
    PreparedBody,
    PreparedChat,
    PreparedCompletion,
    PreparedInfill,
    PreparedJobs,
    PreparedMessage,
    PreparedOllama,
    PreparedResponse,
)
from rtp_llm.server.prepare.served_model import ModelFacts, ServedModel
from rtp_llm.server.prepare.tokenization import prepare_detokenize, prepare_tokenize
from rtp_llm.server.responses.preparation import prepare_count_input, prepare_response

LENGTHS = struct.Struct("<II")
Kind = Literal[
    "chat",
    "chat_batch",
    "completion",
    "invocation",
    "response",
    "message",
    "ollama_chat",
    "ollama_generate",
    "infill",
    "count_tokens",
    "count_input",
    "render_chat",
    "render_completion",
    "tokenize",
    "detokenize",
    "grammar",
]
FUNCTIONS: dict[Kind, Callable[[bytes, ServedModel], Prepared]] = {
    "chat": prepare_chat,
    "chat_batch": prepare_chat_batch,
    "completion": prepare_completion,
    "invocation": prepare_invocation,
    "response": prepare_response,
    "message": prepare_message,
    "ollama_chat": prepare_ollama_chat,
    "ollama_generate": prepare_ollama_generate,
    "infill": prepare_infill,
    "count_tokens": prepare_count,
    "count_input": prepare_count_input,
    "render_chat": render_chat,
    "render_completion": render_completion,
    "tokenize": prepare_tokenize,
    "detokenize": prepare_detokenize,
    "grammar": prepare_grammar,
}
# Of an answer; what a hostile request could otherwise make of a small body.
MAX_ANSWER_BYTES = 64 * 2**20

S = TypeVar("S", bound=msgspec.Struct)


class Call(msgspec.Struct, frozen=True):
    """One body to prepare; it is the tail. `memory_bytes`: what this may take."""

    kind: Kind
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
    """What became of a call: exactly one of its fields, or none where the tail is all.

    `lengths`: of the lists of integers that the tail holds: of each prompt, then of each echo's
    offsets. `ignored`: with a tail that is all.
    """

    refusal: Refusal | None = None
    chat: PreparedChat | None = None
    completion: PreparedCompletion | None = None
    response: PreparedResponse | None = None
    message: PreparedMessage | None = None
    ollama: PreparedOllama | None = None
    infill: PreparedInfill | None = None
    lengths: list[int] = []
    ignored: tuple[str, ...] = ()


def frame(head: msgspec.Struct, tail: bytes = b"") -> list[bytes]:
    """The parts of a frame, to be written one after the other."""
    encoded = msgspec.msgpack.encode(head)
    return [LENGTHS.pack(len(encoded), len(tail)), encoded, tail]


def facts_of(model: ServedModel) -> ModelFacts:
    """All but the tokenizer, which each process has its own of."""
    return ModelFacts(**{each.name: getattr(model, each.name) for each in fields(ModelFacts)})


def refuse(error: ApiError) -> list[bytes]:
    """The frame of an error."""
    refusal = Refusal(
        error.status, error.message, error.kind, error.param, error.code, error.headers
    )
    return frame(Answer(refusal=refusal))


def pack(prepared: Prepared) -> list[bytes]:
    """The frame of a result."""
    if isinstance(prepared, PreparedBody):
        return frame(Answer(ignored=prepared.ignored), prepared.body)
    lists: list[Sequence[int]] = [job.prompt_ids for job in prepared.jobs]
    bare = replace(prepared, jobs=[replace(job, prompt_ids=[]) for job in prepared.jobs])
    if isinstance(bare, PreparedCompletion) and bare.form.echoes is not None:
        echoes = bare.form.echoes
        lists += [echo.offsets for echo in echoes]
        form = replace(bare.form, echoes=[Echo(echo.text, [], []) for echo in echoes])
        bare = replace(bare, form=form)
    lengths = [len(each) for each in lists]
    tail = b"".join(array("i", each).tobytes() for each in lists)
    fields: dict[str, Any] = {_FIELDS[type(bare)]: bare}
    return frame(Answer(lengths=lengths, **fields), tail)


def unpack(head: bytes, tail: bytes) -> Prepared:
    """The result that a frame holds; raises the ApiError that it holds."""
    answer = _answers.decode(head)
    if answer.refusal is not None:
        raise _api_error(answer.refusal)
    lists = _lists(answer.lengths, tail)
    for name in _FIELDS.values():
        prepared: PreparedJobs | None = getattr(answer, name)
        if prepared is not None:
            return _filled(prepared, lists)
    return PreparedBody(tail, answer.ignored)


# The field of Answer that holds each kind of prepared jobs.
_FIELDS: dict[type[PreparedJobs], str] = {
    PreparedChat: "chat",
    PreparedCompletion: "completion",
    PreparedResponse: "response",
    PreparedMessage: "message",
    PreparedOllama: "ollama",
    PreparedInfill: "infill",
}
_answers = msgspec.msgpack.Decoder(Answer)


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


def _filled(prepared: PreparedJobs, lists: list[list[int]]) -> PreparedJobs:
    """With the token ids of prompts and the offsets of echoes."""
    pairs = zip(prepared.jobs, lists, strict=False)
    jobs = [replace(job, prompt_ids=ids) for job, ids in pairs]
    if isinstance(prepared, PreparedCompletion) and prepared.form.echoes is not None:
        echoes = [
            Echo(echo.text, job.prompt_ids, offsets)
            for echo, job, offsets in zip(
                prepared.form.echoes, jobs, lists[len(jobs) :], strict=True
            )
        ]
        prepared = replace(prepared, form=replace(prepared.form, echoes=echoes))
    return replace(prepared, jobs=jobs)
