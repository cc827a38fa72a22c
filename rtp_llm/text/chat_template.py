# SPDX-License-Identifier: Apache-2.0
"""Chat messages to prompt text, with a model's Jinja template in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

import jinja2
import jinja2.defaults
import jinja2.exceptions
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.utils

from rtp_llm.text.template_calls import REASONING, CallStyle, fit, probe

# Names that callers' variables may not use: our own template variables and Jinja's.
RESERVED = frozenset(
    {
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "continue_final_message",
        "chat_template",
        "tokenize",
        "self",
        "super",
        "caller",
        "loop",
        "varargs",
        "kwargs",
        *jinja2.defaults.DEFAULT_NAMESPACE,
        "raise_exception",
        "strftime_now",
    }
)
# Marks where the last message ends, when the answer is to continue it.
_END_OF_MESSAGE = "END_OF_FINAL_MESSAGE "
_MAX_REASON = 1000  # characters of a template's message
# The tools passed to a template that is tried with calls; most show none without tools.
_PROBING_TOOL = {
    "type": "function",
    "function": {
        "name": "some_tool",
        "description": "A tool.",
        "parameters": {
            "type": "object",
            "properties": {"x": {"type": "string", "description": "A text."}},
            "required": ["x"],
        },
    },
}


class ChatTemplateError(ValueError):
    """The template does not compile, or could not render these messages."""


class ChatTemplate:
    """A compiled template; renders what transformers' apply_chat_template renders.

    `special_tokens` (bos_token, eos_token, ...) are visible to the template.
    Raises ChatTemplateError when the template does not compile.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._special_tokens = dict(special_tokens)
        environment = _environment()
        try:
            self._template = environment.from_string(source)
            undeclared = jinja2.meta.find_undeclared_variables(environment.parse(source))
        except Exception as error:  # a source nested too deeply ends in RecursionError
            raise ChatTemplateError(
                f"the chat template does not compile: {_reason(error)}"
            ) from error
        self.variables = frozenset(undeclared)
        """Names that the template reads and does not set itself."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """Render the prompt of a conversation; `variables` are additional template variables.

        `documents`: sources for the answer, for templates that read them.
        `continue_final_message`: the prompt ends with the last message's text. A content that is
        None becomes "", and messages with calls become what the template takes (`call_style`);
        other keys with the value None are left out, as most templates expect.
        Raises ChatTemplateError when the template refuses the messages or fails on them.
        """
        reserved = RESERVED.intersection(variables)
        if reserved:
            raise ChatTemplateError(f"{min(reserved)} cannot be set as a template variable")
        if continue_final_message and add_generation_prompt:
            raise ChatTemplateError(
                "continue_final_message and add_generation_prompt cannot both be set"
            )
        plain = [_plain_message(message) for message in messages]
        if continue_final_message and not (plain and isinstance(plain[-1].get("content"), str)):
            raise ChatTemplateError("continue_final_message: the last message has no text")
        has_calls = any("tool_calls" in message for message in plain)
        plain = fit(plain, self.call_style if has_calls else CallStyle())
        given = {**variables, "tools": tools, "documents": documents}
        if continue_final_message:
            return self._render_open(plain, given)
        return self._render(plain, given, add_generation_prompt)

    @cached_property
    def call_style(self) -> CallStyle:
        """How the template takes tool calls; tried once."""
        return probe(self._probe)

    @property
    def takes_objects(self) -> bool:
        """The arguments of calls are an object for the template, not its JSON."""
        return self.call_style.objects

    def _probe(self, messages: list[dict[str, Any]]) -> str | None:
        try:
            return self._render(messages, {"tools": [_PROBING_TOOL]}, False)
        except ChatTemplateError:
            return None

    def _render_open(self, messages: list[dict[str, Any]], variables: dict[str, Any]) -> str:
        """Render up to the end of the last message's text, without its closing markup."""
        marked = {**messages[-1], "content": (messages[-1]["content"] or "") + _END_OF_MESSAGE}
        text = self._render([*messages[:-1], marked], variables, False)
        end = text.rfind(_END_OF_MESSAGE.strip())
        if end < 0:
            raise ChatTemplateError(
                "continue_final_message: the chat template does not show the last message's text"
            )
        # A template that trims its messages would have trimmed the spaces before the mark, too.
        kept = text[end:].startswith(_END_OF_MESSAGE)
        return text[:end] if kept else text[:end].rstrip()

    def _render(
        self,
        messages: list[dict[str, Any]],
        variables: dict[str, Any],
        add_generation_prompt: bool,
    ) -> str:
        try:
            text = self._template.render(
                {
                    "documents": None,
                    **self._special_tokens,
                    **variables,
                    "messages": messages,
                    "add_generation_prompt": add_generation_prompt,
                }
            )
            text.encode()  # rejects unpaired surrogates
        except jinja2.TemplateError as error:
            raise ChatTemplateError(
                f"the chat template refused the messages: {_reason(error)}"
            ) from error
        except Exception as error:
            # A template is a program: it can fail on these messages in any way, never on ours.
            raise ChatTemplateError(
                f"the chat template cannot render these messages: {_reason(error)}"
            ) from error
        return text


def _reason(error: Exception) -> str:
    """The error's message, shortened."""
    text = str(error)
    shown = text if len(text) <= _MAX_REASON else f"{text[:_MAX_REASON]}..."
    return shown if isinstance(error, jinja2.TemplateError) else f"{type(error).__name__}: {shown}"


def _plain_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Without empty keys but the content; reasoning is known under every name templates use."""
    plain = {key: value for key, value in message.items() if value is not None or key == "content"}
    reasoning = next((plain[name] for name in REASONING if name in plain), None)
    if reasoning is not None:
        plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
    return plain


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks what the assistant wrote; it is plain here."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 reads a plain set

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(jinja2.utils.Namespace):
    """A namespace that lets no template reach Python's internals through its attributes."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _Namespace._check(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _Namespace._check(name)
        super().__setitem__(name, value)

    @staticmethod
    def _check(name: object) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"the template may not set attribute {name!r}")


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlock, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["namespace"] = _Namespace
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike Jinja's own filter this escapes no HTML: prompts are not pages."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
