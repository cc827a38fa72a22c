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

# Names that a caller's variables may not have: what is rendered, and Jinja's own.
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

# An argument's name, to see how a template writes it.
_PROBE_NAME = "probed_argument"
REASONING = ("reasoning_content", "thinking", "reasoning")


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
        **variables: Any,
    ) -> str:
        """The prompt of a conversation; `variables` are further names for the template.

        `continue_final_message`: the prompt ends with the last message's text. A content that is
        None stays; other keys whose value is None are left out, as most templates expect. The
        arguments of tool calls are given as the template takes them, see `takes_objects`.
        Raises ChatTemplateError when the template refuses the messages or fails on them.
        """
        reserved = RESERVED.intersection(variables)
        if reserved:
            raise ChatTemplateError(f"{min(reserved)} cannot be set as a template variable")
        plain = [_plain_message(message) for message in messages]
        if any("tool_calls" in message for message in plain):
            plain = [_with_arguments(message, self.takes_objects) for message in plain]
        given = {**variables, "tools": tools}
        if not continue_final_message:
            return self._render(plain, given, add_generation_prompt)
        if add_generation_prompt:
            raise ChatTemplateError(
                "continue_final_message and add_generation_prompt cannot both be set"
            )
        return self._render_open(plain, given)

    @cached_property
    def takes_objects(self) -> bool:
        """The arguments of calls are an object for the template, not its JSON.

        Most write them with `tojson` or one by one, a few join their text to others. Tried once:
        there an object fails, or shows as Python writes it.
        """
        for content in ("", None):
            text = self._probe(content, {_PROBE_NAME: 1})
            if text is not None:
                return repr(_PROBE_NAME) not in text
        texts = (self._probe(content, "{}") for content in ("", None))
        return all(text is None for text in texts)

    def _probe(self, content: str | None, arguments: object) -> str | None:
        function = {"name": "f", "arguments": arguments}
        call = {"id": "call00000", "type": "function", "function": function}
        asks: dict[str, Any] = {"role": "user", "content": "?"}
        calls: dict[str, Any] = {"role": "assistant", "content": content, "tool_calls": [call]}
        try:
            return self._render([asks, calls], {"tools": None}, False)
        except ChatTemplateError:
            return None

    def _render_open(self, messages: list[dict[str, Any]], variables: dict[str, Any]) -> str:
        """Up to the end of the last message's text, without what closes the message."""
        content = messages[-1].get("content") if messages else None
        if not isinstance(content, str):
            raise ChatTemplateError("continue_final_message: the last message has no text")
        marked = {**messages[-1], "content": content + _END_OF_MESSAGE}
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
                    **self._special_tokens,
                    **variables,
                    "messages": messages,
                    "documents": None,
                    "add_generation_prompt": add_generation_prompt,
                }
            )
            text.encode()  # half a surrogate pair is no text
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
    """What went wrong, shortened."""
    text = str(error)
    shown = text if len(text) <= _MAX_REASON else f"{text[:_MAX_REASON]}..."
    return shown if isinstance(error, jinja2.TemplateError) else f"{type(error).__name__}: {shown}"


def _with_arguments(message: dict[str, Any], objects: bool) -> dict[str, Any]:
    """With the arguments of its calls as objects, or else as their JSON; both are taken."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_with_argument(call, objects) for call in calls]}


def _with_argument(call: Any, objects: bool) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return call
    arguments = function.get("arguments")
    if isinstance(arguments, str) and objects:
        arguments = _object(arguments)
    elif isinstance(arguments, Mapping) and not objects:
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}


def _object(text: str) -> Any:
    """The object that the text says; the text itself where a model wrote none."""
    try:
        value = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


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
