# SPDX-License-Identifier: Apache-2.0
"""The result of preparing a body: work for the engine and response options, or an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from rtp_llm.server.types.jobs import (
    ChatResponseOptions,
    CompletionResponseOptions,
    Job,
    PromptBatch,
)

F = TypeVar("F")


@dataclass(frozen=True)
class PreparedBody:
    """The body of an answer that needs no engine. `ignored`: unknown fields."""

    body: bytes
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class PreparedJobs(Generic[F]):
    """A request ready to be generated, a job for each prompt. `ignored`: unknown fields."""

    jobs: list[Job]
    stream: bool
    response_options: F
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class PreparedPrompts(Generic[F]):
    """A request ready to be pooled. `ignored`: unknown fields."""

    batch: PromptBatch
    response_options: F
    ignored: tuple[str, ...] = ()


PreparedChat: TypeAlias = PreparedJobs[ChatResponseOptions]
PreparedCompletion: TypeAlias = PreparedJobs[CompletionResponseOptions]
Prepared: TypeAlias = PreparedJobs[Any] | PreparedPrompts[Any] | PreparedBody
