# SPDX-License-Identifier: Apache-2.0
"""The assistant's next turn, as any protocol asks for it, and what the engine is asked then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rtp_llm.server.openai.protocol import SamplingFields
from rtp_llm.server.prepare.grammar_source import GrammarSource
from rtp_llm.server.prepare.jobs import AnswerOptions
from rtp_llm.server.prepare.sampling import Lengths
from rtp_llm.text.conversation import Message, Tool, ToolChoice


@dataclass(frozen=True, kw_only=True)
class ReasoningWish:
    """What is wanted of the thinking before the answer; None: as the model does by itself.

    `enabled`: it thinks at all; `effort`: none, minimal, low, medium, high, ..., for templates that
    know it; `budget`: most tokens of it. `optional`: what the model cannot do is left out instead
    of refused, for protocols whose clients always wish something.
    """

    enabled: bool | None = None
    effort: str | None = None
    budget: int | None = None
    optional: bool = False


@dataclass(frozen=True, kw_only=True)
class ChatPrompt:
    """What is rendered. `variables`: further ones of the template; they win over the wish.

    `chat_template`: the request's own instead of the model's. `add_generation_prompt`: None: unless
    `continue_final_message`.
    """

    messages: Sequence[Message]
    tools: tuple[Tool, ...] = ()
    documents: Sequence[Mapping[str, Any]] = ()
    reasoning: ReasoningWish = ReasoningWish()
    variables: Mapping[str, Any] = field(default_factory=dict)
    chat_template: str | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False


@dataclass(frozen=True, kw_only=True)
class ChatTurn:
    """One request of a chat. `sampling`: what it says of sampling, under the names of vLLM.

    `lengths`: of the answer, with the names that errors use; `grammar`: of the answer, from the end
    of the thinking on (a response format).
    """

    prompt: ChatPrompt
    sampling: SamplingFields
    lengths: Lengths
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    grammar: GrammarSource | None = None
    options: AnswerOptions = field(default_factory=AnswerOptions)
