# SPDX-License-Identifier: Apache-2.0
"""The result of preparing a body: jobs for the engine and the form of answers, or an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from rtp_llm.server.types.jobs import ChatForm, CompletionForm, Job

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
    form: F
    ignored: tuple[str, ...] = ()


PreparedChat: TypeAlias = PreparedJobs[ChatForm]
PreparedCompletion: TypeAlias = PreparedJobs[CompletionForm]
Prepared: TypeAlias = PreparedJobs[Any] | PreparedBody
