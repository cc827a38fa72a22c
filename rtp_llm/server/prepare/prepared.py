# SPDX-License-Identifier: Apache-2.0
"""What becomes of a body: jobs for the engine and how they are shown, or an answer at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from rtp_llm.server.anthropic.form import MessageForm
from rtp_llm.server.llama_cpp.form import InfillForm
from rtp_llm.server.ollama.form import OllamaForm
from rtp_llm.server.prepare.jobs import ChatForm, CompletionForm, Job
from rtp_llm.server.responses.form import ResponseForm


@dataclass(frozen=True)
class PreparedBody:
    """The body of an answer that needs no engine. `ignored`: fields that nobody knows."""

    body: bytes
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class PreparedChat:
    """A chat that can be generated. `ignored`: fields that nobody knows."""

    jobs: list[Job]
    stream: bool
    form: ChatForm
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class PreparedCompletion:
    """A completion that can be generated: one job per prompt. `ignored`: as of a chat."""

    jobs: list[Job]
    stream: bool
    form: CompletionForm
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class PreparedResponse:
    """A response that can be generated. `inputs`: items of the request, if they are stored."""

    jobs: list[Job]
    stream: bool
    form: ResponseForm
    inputs: Sequence[dict[str, Any]] = ()
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class PreparedMessage:
    """A message that can be generated. `ignored`: as of a chat."""

    jobs: list[Job]
    stream: bool
    form: MessageForm
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class PreparedOllama:
    """An answer in Ollama's form that can be generated. `ignored`: as of a chat."""

    jobs: list[Job]
    stream: bool
    form: OllamaForm
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class PreparedInfill:
    """An answer in llama.cpp's form that can be generated. `ignored`: as of a chat."""

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
