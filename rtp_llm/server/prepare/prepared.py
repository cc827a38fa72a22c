"""What becomes of a body: jobs for the engine and how they are shown, or an answer at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from rtp_llm.server.prepare.jobs import ChatForm, CompletionForm, Job


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


PreparedJobs: TypeAlias = PreparedChat | PreparedCompletion
Prepared: TypeAlias = PreparedJobs | PreparedBody
