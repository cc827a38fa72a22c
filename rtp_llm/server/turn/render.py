# SPDX-License-Identifier: Apache-2.0
"""Renders the messages of a conversation to the text of its prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rtp_llm.server.turn.chat_turn import ChatPrompt, ReasoningOptions
from rtp_llm.server.turn.parse import refused
from rtp_llm.server.turn.served_model import NotInline, ServedModel
from rtp_llm.server.types.errors import bad_request
from rtp_llm.text.chat_template import RESERVED, ChatTemplateError
from rtp_llm.text.template_messages import template_messages, template_tools

# Template variables that turn reasoning on and off.
THINKING_SWITCHES = ("enable_thinking", "thinking")
_ROLES = frozenset({"system", "user", "assistant", "tool"})  # known to every template
# Types that a template can only inspect: no numbers to count to, no lists to iterate over.
_PLAIN = (bool, str, type(None))


@dataclass(frozen=True)
class Rendered:
    """A prompt's text. `thinking`: the value that the template received, None: none."""

    text: str
    thinking: bool | None


def check_template(chat_template: str | None, model: ServedModel) -> None:
    """Raise ApiError 400 for a template in the request, unless these are trusted."""
    if chat_template and not model.trust_chat_template:
        raise refused("chat_template", "chat_template")


def render(prompt: ChatPrompt, model: ServedModel) -> Rendered:
    """Render the prompt's text; raises ApiError, and NotInline if it may take long."""
    add, final = prompt.add_generation_prompt, prompt.continue_final_message
    if add and final:
        raise bad_request(
            "continue_final_message and add_generation_prompt cannot both be true.",
            "continue_final_message",
            "invalid_value",
        )
    check_template(prompt.chat_template, model)
    if model.inline and (prompt.chat_template is not None or prompt.documents):
        raise NotInline  # even compiling may take long, as constants are folded
    try:
        if prompt.documents:
            known = model.tokenizer.template_variables(prompt.chat_template)
            if "documents" not in known:
                raise refused("documents", "documents")
        variables = _variables(prompt, model)
        if model.inline and not all(isinstance(each, _PLAIN) for each in variables.values()):
            raise NotInline
        text = model.tokenizer.apply_chat_template(
            template_messages(prompt.messages),
            add is not False and not final,
            continue_final_message=final,
            chat_template=prompt.chat_template,
            tools=template_tools(prompt.tools) or None,
            documents=list(prompt.documents) or None,
            **variables,
        )
        _check_roles(prompt, text)
        switches = [variables[name] for name in THINKING_SWITCHES if name in variables]
        return Rendered(text, bool(switches[0]) if switches else None)
    except ChatTemplateError as error:
        reason = str(error)
        raise bad_request(
            reason[:1].upper() + reason[1:] + ".",
            param="messages" if prompt.chat_template is None else "chat_template",
            code="chat_template",
        ) from error


def _check_roles(prompt: ChatPrompt, text: str) -> None:
    """Raise ApiError 400 for a role that the template omits from the prompt.

    Many templates support four roles and silently drop messages of any other.
    """
    for at, message in enumerate(prompt.messages):
        if message.role in _ROLES:
            continue
        content = (message.content or "").strip()
        if content not in text or message.role.lower() not in text.lower():
            raise bad_request(
                f"messages[{at}].role: the chat template does not show messages of the role "
                f"{message.role!r} to the model.",
                f"messages[{at}].role",
                "invalid_value",
            )


def _variables(prompt: ChatPrompt, model: ServedModel) -> dict[str, Any]:
    """The template's variables: the client's own, and those for its reasoning options."""
    reserved = sorted(RESERVED.intersection(prompt.variables))
    if reserved:
        raise bad_request(
            f"chat_template_kwargs: {reserved[0]} cannot be set here.",
            param="chat_template_kwargs",
            code="invalid_value",
        )
    reasoning_options = prompt.reasoning
    if reasoning_options.effort is None and reasoning_options.enabled is None:
        return dict(prompt.variables)
    known = model.tokenizer.template_variables(prompt.chat_template)
    return {
        **_reasoning_variables(reasoning_options, known, model.reasoning_parser is not None),
        **prompt.variables,
    }


def _reasoning_variables(
    reasoning_options: ReasoningOptions, known: frozenset[str], thinks: bool
) -> dict[str, Any]:
    """The variables that pass reasoning options to a template; `known`: those that it reads.

    If the template cannot stop a model that `thinks`, a budget of 0 does, see `thinking_of`.
    """
    found: dict[str, Any] = {}
    enabled = reasoning_options.enabled
    if reasoning_options.effort is not None:
        if "reasoning_effort" in known:
            found["reasoning_effort"] = reasoning_options.effort
        elif not (thinks or reasoning_options.optional or reasoning_options.effort == "none"):
            raise refused("reasoning_effort", "reasoning_effort")
        if enabled is None:
            enabled = reasoning_options.effort != "none"
    switches = [name for name in THINKING_SWITCHES if name in known]
    if reasoning_options.enabled and not (switches or thinks or reasoning_options.optional):
        raise refused("enable_thinking", "enable_thinking")
    return found | dict.fromkeys(switches, enabled)
