# SPDX-License-Identifier: Apache-2.0
"""Finds out how a chat template expects messages with tool calls, and adapts messages to it.

Templates differ: most take the arguments of a call as an object, a few join their JSON to text;
some show calls only where content is None, refuse two calls in a message, or want ids of one
length. Each is tried once on a few short conversations; whatever it takes is left as it is.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Messages: TypeAlias = list[dict[str, Any]]
Render: TypeAlias = Callable[[Messages], str | None]
"""A conversation's text; None where the template refuses it."""

REASONING = ("reasoning_content", "thinking", "reasoning")
"""The names that templates know a message's reasoning by."""

_NAMES = ("probed_function", "second_function")
_ARGUMENT = "probed_argument"
_TEXT = "probed text"
_IDS = ("probedid1", "probedid2")  # as Mistral's templates want them
_LONG_ID = "call_0123456789abcdefghijklmn"
_ASKS: dict[str, Any] = {"role": "user", "content": "?"}

_NINE = re.compile(r"[A-Za-z0-9]{9}")
_NAMED = re.compile(r"(?:functions\.)?.+:\d+")
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class CallStyle:
    """How a template takes calls.

    ``objects``: arguments as an object, else as JSON text. ``null``: content must be None where a
    message has calls and no text. ``text``: a text and calls in one message are "kept", need two
    messages ("split"), or the text has no place ("dropped"). ``several``: a message may have more
    than one call. ``ids``: "nine" letters and digits, "named" functions.NAME:INDEX, or "any".
    """

    objects: bool = True
    null: bool = False
    text: Literal["kept", "split", "dropped"] = "kept"
    several: bool = True
    ids: Literal["any", "nine", "named"] = "any"


def probe(render: Render) -> CallStyle:
    """Determine the style of the template that ``render`` uses.

    A template that shows no calls is assumed to have the usual style.
    """
    found = _arguments(render)
    if found is None:
        return CallStyle(objects=_renders(render, {_ARGUMENT: 1}) or not _renders(render, "{}"))
    content, objects = found
    style = CallStyle(objects=objects, null=content is None)
    return CallStyle(
        objects,
        style.null,
        _text_style(render, style),
        _several(render, style),
        _ids(render, style),
    )


def fit(messages: Sequence[dict[str, Any]], style: CallStyle) -> Messages:
    """Adapt messages to a template of this style, without losing any of their content.

    A content of None becomes "", except in messages with calls if the template requires None.
    """
    fitted = [_with_content(message, style) for message in messages]
    if not any(_calls(message) for message in fitted):
        return fitted
    fitted = [_with_arguments(message, style.objects) for message in fitted]
    if style.ids != "any":
        fitted = _with_ids(fitted, style.ids)
    if style.text != "kept":
        fitted = [part for message in fitted for part in _without_text(message, style)]
    return fitted if style.several else _one_call_each(fitted, style)


def _call(index: int, arguments: object, id: str = "") -> dict[str, Any]:
    function = {"name": _NAMES[index], "arguments": arguments}
    return {"id": id or _IDS[index], "type": "function", "function": function}


def _assistant(content: str | None, *calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **({"tool_calls": [*calls]} if calls else {})}


def _result(index: int) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": _IDS[index], "name": _NAMES[index], "content": "1"}


def _given(style: CallStyle) -> object:
    return {_ARGUMENT: 1} if style.objects else json.dumps({_ARGUMENT: 1})


def _renders(render: Render, arguments: object) -> bool:
    texts = (render([_ASKS, _assistant(each, _call(0, arguments))]) for each in ("", None))
    return any(text is not None for text in texts)


def _arguments(render: Render) -> tuple[str | None, bool] | None:
    """The content and the form of arguments with which a call is shown best; None: with none.

    An object that the template joins to text shows as Python writes it, and a text that it writes
    as JSON has its quotes escaped.
    """
    second_best = None
    for content in ("", None):
        for objects in (True, False):
            arguments = _given(CallStyle(objects=objects))
            text = render([_ASKS, _assistant(content, _call(0, arguments))])
            if text is None or _ARGUMENT not in text:
                continue
            if repr(_ARGUMENT) not in text and f'\\"{_ARGUMENT}' not in text:
                return content, objects
            second_best = second_best or (content, objects)
    return second_best


def _empty(style: CallStyle) -> str | None:
    return None if style.null else ""


def _text_style(render: Render, style: CallStyle) -> Literal["kept", "split", "dropped"]:
    """How calls next to text are rendered. Only lost calls matter: many templates drop the text."""
    call = _call(0, _given(style))
    if _ARGUMENT in (render([_ASKS, _assistant(_TEXT, call)]) or ""):
        return "kept"
    parts = render([_ASKS, _assistant(_TEXT), _assistant(_empty(style), call)]) or ""
    return "split" if _TEXT in parts and _ARGUMENT in parts else "dropped"


def _several(render: Render, style: CallStyle) -> bool:
    """Whether two calls fit in one message, or it does not help to split it."""
    calls = [_call(index, _given(style)) for index in range(2)]
    results = [_result(index) for index in range(2)]
    content = _empty(style)
    together = render([_ASKS, _assistant(content, *calls), *results]) or ""
    pairs = zip(calls, results, strict=True)
    parts = [part for call, result in pairs for part in (_assistant(content, call), result)]
    apart = render([_ASKS, *parts]) or ""
    return together.count(_ARGUMENT) >= 2 or apart.count(_ARGUMENT) < 2


def _ids(render: Render, style: CallStyle) -> Literal["any", "nine", "named"]:
    def shown(id: str) -> str:
        message = _assistant(_empty(style), _call(0, _given(style), id))
        return render([_ASKS, message]) or ""

    if _ARGUMENT not in shown(_LONG_ID):
        return "nine"
    return "named" if _LONG_ID in shown(_LONG_ID) and _NAMES[0] not in shown(_LONG_ID) else "any"


def _calls(message: Mapping[str, Any]) -> list[Any]:
    calls = message.get("tool_calls")
    return calls if isinstance(calls, list) else []


def _with_content(message: dict[str, Any], style: CallStyle) -> dict[str, Any]:
    if "content" not in message or message["content"]:
        return message
    if _calls(message) and style.null:
        return {**message, "content": None}
    return {**message, "content": ""} if message["content"] is None else message


def _with_arguments(message: dict[str, Any], objects: bool) -> dict[str, Any]:
    """With the arguments of its calls as objects, or else as their JSON; both are taken."""
    if not _calls(message):
        return message
    return {**message, "tool_calls": [_with_argument(call, objects) for call in _calls(message)]}


def _with_argument(call: Any, objects: bool) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return call
    arguments = function.get("arguments")
    if isinstance(arguments, str) and objects:
        arguments = _object(arguments)
    elif isinstance(arguments, Mapping) and not objects:
        arguments = json.dumps(arguments, ensure_ascii=False)
    elif isinstance(arguments, str) and not arguments.strip():
        arguments = "{}"
    return {**call, "function": {**function, "arguments": arguments}}


def _object(text: str) -> Any:
    """The object that the text says; the text itself where a model wrote none."""
    try:
        value = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def _with_ids(messages: Messages, kind: Literal["nine", "named"]) -> Messages:
    """Replace ids that are not of the kind; results get the ids of their calls."""
    fitted, renamed, count = [], dict[str, str](), 0
    for message in messages:
        if calls := _calls(message):
            new = []
            for call in calls:
                if isinstance(call, Mapping) and isinstance(call.get("id"), str):
                    id = renamed[call["id"]] = _id_of(call, kind, count)
                    call = {**call, "id": id}
                new.append(call)
                count += 1
            message = {**message, "tool_calls": new}
        answered = message.get("tool_call_id")
        if isinstance(answered, str):
            id = renamed.get(answered) or (_nine(answered) if kind == "nine" else answered)
            message = {**message, "tool_call_id": id}
        fitted.append(message)
    return fitted


def _id_of(call: Mapping[str, Any], kind: Literal["nine", "named"], index: int) -> str:
    id: str = call["id"]
    if kind == "nine":
        return _nine(id)
    function = call.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    return id if _NAMED.fullmatch(id) or not name else f"functions.{name}:{index}"


def _nine(id: str) -> str:
    """The id, or nine characters made of it alone: turns of a conversation agree on them."""
    if _NINE.fullmatch(id):
        return id
    number = int.from_bytes(hashlib.sha256(id.encode("utf-8", "replace")).digest()[:8], "little")
    return "".join(_LETTERS[number // 62**place % 62] for place in range(9))


def _without_text(message: dict[str, Any], style: CallStyle) -> Messages:
    """A message with text and calls as two, or without the text."""
    if not _calls(message) or not message.get("content"):
        return [message]
    calls = {**message, "content": _empty(style)}
    if style.text == "dropped":
        return [calls]
    first = {key: value for key, value in message.items() if key != "tool_calls"}
    return [first, _without_reasoning(calls)]


def _without_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key not in REASONING}


def _one_call_each(messages: Messages, style: CallStyle) -> Messages:
    """With a message for each call, followed by the call's results."""
    fitted: Messages = []
    at = 0
    while at < len(messages):
        message, at = messages[at], at + 1
        calls = _calls(message)
        if len(calls) < 2:
            fitted.append(message)
            continue
        results: Messages = []
        while at < len(messages) and messages[at].get("role") == "tool":
            results.append(messages[at])
            at += 1
        for index, call in enumerate(calls):
            part = {**message, "tool_calls": [call]}
            if index:
                part = _without_reasoning({**part, "content": _empty(style)})
            answers = _results_of(call, results, last=index == len(calls) - 1)
            results = [result for result in results if result not in answers]
            fitted += [part, *answers]
    return fitted


def _results_of(call: Any, results: Messages, *, last: bool) -> Messages:
    """Those that name the call, or else the first that names none; of the last call all."""
    if last:
        return results
    id = call.get("id") if isinstance(call, Mapping) else None
    named = [result for result in results if id is not None and result.get("tool_call_id") == id]
    nameless = [result for result in results if result.get("tool_call_id") is None]
    return named or nameless[:1]
