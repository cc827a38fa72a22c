# SPDX-License-Identifier: Apache-2.0
"""The result of preparing a body: engine jobs and the form of answers, or a finished answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from rtp_llm.server.protocols.anthropic.form import MessageForm
from rtp_llm.server.protocols.llama_cpp.form import InfillForm
from rtp_llm.server.protocols.ollama.form import OllamaForm
from rtp_llm.server.protocols.responses.form import ResponseForm
from rtp_llm.server.types.jobs import ChatForm, CompletionForm, Job


@dataclass(frozen=True)
class PreparedBody:
    """The body of an answer that needs no engine. `ignored`: unknown fields."""

    body: bytes
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class PreparedChat:
    """A chat ready to be generated. `ignored`: unknown fields."""

    jobs: list[Job]
    stream: bool
    form: ChatForm
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class PreparedCompletion:
    """A completion ready to be generated: one job per prompt. `ignored`: unknown fields."""

    jobs: list[Job]
    stream: bool
    form: CompletionForm
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class PreparedResponse:
    """A response ready to be generated. `inputs`: items of the request, if they are stored."""

    jobs: list[Job]
    stream: bool
    form: ResponseForm
    inputs: Sequence[dict[str, Any]] = ()
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class PreparedMessage:
    """A message ready to be generated. `ignored`: unknown fields."""

    jobs: list[Job]
    stream: bool
    form: MessageForm
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class PreparedOllama:
    """An answer in Ollama's format ready to be generated. `ignored`: unknown fields."""

    jobs: list[Job]
    stream: bool
    form: OllamaForm
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class PreparedInfill:
    """An answer in llama.cpp's format ready to be generated. `ignored`: unknown fields."""

    jobs: list[Job]
    stream: bool
    form: InfillForm
    ignored: tuple[str, ...] = ()


PreparedJobs: TypeAlias = (
    PreparedChat
    | PreparedCompletion
    | PreparedResponse
    | PreparedMessage
    | PreparedOllama
    | PreparedInfill
)
Prepared: TypeAlias = PreparedJobs | PreparedBody
