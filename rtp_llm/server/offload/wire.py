# SPDX-License-Identifier: Apache-2.0
"""The protocol between the HTTP process and a preparation process.

A frame is two lengths (unsigned 32-bit), a msgpack head, and a tail of raw bytes: the body in one
direction, token ids or a JSON answer in the other, so that a million ids are not a million objects.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, Literal, TypeVar

import msgspec

from rtp_llm.server.protocols.anthropic.message_turn import prepare_count, prepare_message
from rtp_llm.server.protocols.llama_cpp.infill_turn import prepare_infill
from rtp_llm.server.protocols.ollama.ollama_turn import prepare_ollama_chat, prepare_ollama_generate
from rtp_llm.server.protocols.openai.chat_batch import prepare_chat_batch
from rtp_llm.server.protocols.openai.chat_request import prepare_chat
from rtp_llm.server.protocols.openai.generate_request import render_chat, render_completion
from rtp_llm.server.protocols.openai.invocation import prepare_invocation
from rtp_llm.server.protocols.openai.tokenization import prepare_detokenize, prepare_tokenize
from rtp_llm.server.protocols.responses.response_turn import prepare_count_input, prepare_response
from rtp_llm.server.turn.completion import prepare_completion
from rtp_llm.server.turn.grammar_source import prepare_grammar
from rtp_llm.server.turn.prepared import (
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
from rtp_llm.server.turn.served_model import ModelFacts, ServedModel
from rtp_llm.server.types.errors import ApiError
from rtp_llm.server.types.jobs import Echo

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
# Size limit of an answer, as a malicious request could expand a small body.
MAX_ANSWER_BYTES = 64 * 2**20

S = TypeVar("S", bound=msgspec.Struct)


class Call(msgspec.Struct, frozen=True):
    """A body to prepare, which is the tail. `memory_bytes`: its memory limit."""

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
    """The result of a call: exactly one of the fields is set, or none if the tail is the answer.

    `lengths`: lengths of the integer lists in the tail: each prompt, then each echo's offsets.
    `ignored`: if the tail is the answer.
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
    """The result in a frame; raises the ApiError if the frame contains one."""
    answer = _answers.decode(head)
    if answer.refusal is not None:
        raise _api_error(answer.refusal)
    lists = _lists(answer.lengths, tail)
    for name in _FIELDS.values():
        prepared: PreparedJobs | None = getattr(answer, name)
        if prepared is not None:
            return _filled(prepared, lists)
    return PreparedBody(tail, answer.ignored)


# The field of Answer for each type of result.
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
    """The result with the token ids of prompts and the offsets of echoes filled in."""
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
