# SPDX-License-Identifier: Apache-2.0
"""The assistant's next turn, independent of the protocol that requests it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rtp_llm.request.beam_search import BeamSearch
from rtp_llm.server.turn.grammar_source import GrammarSource
from rtp_llm.server.turn.sampling import Lengths
from rtp_llm.server.types.jobs import AnswerOptions
from rtp_llm.server.types.openai_bodies import SamplingFields
from rtp_llm.text.conversation import Message, Tool, ToolChoice


@dataclass(frozen=True, kw_only=True)
class ReasoningOptions:
    """The requested reasoning before the answer; None: the model's default.

    `enabled`: whether to reason at all; `effort`: none, minimal, low, medium, high, ..., for
    templates that support it; `budget`: maximum number of reasoning tokens. `optional`: ignore what
    the model does not support instead of refusing it, for protocols whose clients always set these.
    """

    enabled: bool | None = None
    effort: str | None = None
    budget: int | None = None
    optional: bool = False


@dataclass(frozen=True, kw_only=True)
class ChatPrompt:
    """The input of the template. `variables`: additional ones, which override those for reasoning.

    `chat_template`: the request's own, replacing the model's. `add_generation_prompt`: None means
    unless `continue_final_message`.
    """

    messages: Sequence[Message]
    tools: tuple[Tool, ...] = ()
    documents: Sequence[Mapping[str, Any]] = ()
    reasoning: ReasoningOptions = ReasoningOptions()
    variables: Mapping[str, Any] = field(default_factory=dict)
    chat_template: str | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False


@dataclass(frozen=True, kw_only=True)
class ChatTurn:
    """One chat request. `sampling`: its sampling fields, under vLLM's names.

    `lengths`: limits on the answer, with the field names for errors; `grammar`: the grammar of the
    answer after the reasoning (a response format); `beam_search`: how the choices are found.
    """

    prompt: ChatPrompt
    sampling: SamplingFields
    lengths: Lengths
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    grammar: GrammarSource | None = None
    options: AnswerOptions = field(default_factory=AnswerOptions)
    beam_search: BeamSearch | None = None
