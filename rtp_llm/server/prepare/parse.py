"""A request body to a checked struct, or a 400 that names the field."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from rtp_llm.config.refusals import find_refusal, get_refusal
from rtp_llm.server.bounds import check_bounds
from rtp_llm.server.errors import ApiError, bad_request
from rtp_llm.server.openai.protocol import Message, StreamOptions
from rtp_llm.text.chat_template import RESERVED

T = TypeVar("T", bound=msgspec.Struct)

# Known fields that cannot change the text: accounting, routing and storage on the provider's side.
IGNORED_FIELDS = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "parallel_tool_calls",
        "request_id",
    }
)
# Values of a refused field that ask for nothing beyond what is done anyway.
HARMLESS: dict[str, tuple[Any, ...]] = {
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "length_penalty": (1, 1.0),
    "typical_p": (1, 1.0),
    "mirostat": (0,),
    "repeat_penalty": (1, 1.0),
    "verbosity": ("medium",),
}
# Names of unknown fields that are told to the client: how many, and characters of each.
MAX_IGNORED, MAX_IGNORED_LENGTH = 16, 64
_ODD = re.compile(r"[^A-Za-z0-9_.-]")
_EMPTY: tuple[Any, ...] = (None, False, "", [], {})
_PLACE = re.compile(r"(.*?)(?: - at `(.*)`)?", re.DOTALL)


def parse(body: bytes, kind: type[T], strict: bool = False) -> tuple[T, tuple[str, ...]]:
    """Decode `body` as `kind`; also the names of the fields that nobody knows.

    Of these, null, false and empty values are not named; `strict` refuses the others. Names are
    given as a header can carry them. Fields of IGNORED_FIELDS are taken and not used.
    Raises ApiError 400: bad JSON, a wrong type (naming the field), a field that is refused.
    """
    content = _decode(body)
    check_bounds(content)
    unknown = [name for name, value in content.items() if _is_unknown(kind, name, value)]
    options = content.get("stream_options")
    if isinstance(options, dict) and "stream_options" in kind.__struct_fields__:
        known = StreamOptions.__struct_fields__
        unknown += [
            f"stream_options.{name}"
            for name, value in options.items()
            if name not in known and not is_harmless(name, value)
        ]
    if unknown and strict:
        raise bad_request(
            f"Unknown field {unknown[0]!r}; it would have no effect (--strict-fields).",
            param=unknown[0],
            code="unknown_field",
        )
    try:
        return _convert(content, kind), _plain_names(unknown)
    except msgspec.ValidationError as error:
        raise _describe(str(error)) from error


def _convert(content: dict[str, Any], kind: type[T]) -> T:
    """As `kind`; where that fails, with 5.0 for 5, which JSON Schema takes for an integer, too."""
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        if "expected `int" not in str(error).lower():
            raise
    return msgspec.convert(_with_integers(content), kind)


def _with_integers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_integers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_integers(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _is_unknown(kind: type[msgspec.Struct], name: str, value: Any) -> bool:
    """Raises ApiError 400 for a field that is known and not supported."""
    if name in kind.__struct_fields__ or name in IGNORED_FIELDS:
        return False
    if is_harmless(name, value):
        return False
    refusal = find_refusal("request", name)
    if refusal is not None:
        raise bad_request(refusal.message, param=name, code="unsupported")
    return True


def _plain_names(names: list[str]) -> tuple[str, ...]:
    """The first of them, cut, and with nothing in them that means something in a header."""
    shown = [_ODD.sub("?", name[:MAX_IGNORED_LENGTH]) for name in names[:MAX_IGNORED]]
    return tuple(shown if len(names) <= MAX_IGNORED else [*shown, "..."])


def _decode(body: bytes) -> dict[str, Any]:
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"The body is not valid JSON: {error}", code="invalid_json") from error
    except RecursionError as error:
        raise bad_request("The body is nested too deeply.", code="invalid_json") from error
    if not isinstance(content, dict):
        raise bad_request("The body must be a JSON object.", code="invalid_json")
    return content


def is_harmless(name: str, value: Any) -> bool:
    """Whether this value of a refused field asks for nothing."""
    known = (*_EMPTY, *HARMLESS.get(name, ()))
    # By type, too: 0 equals False, but `thinking_budget: 0` asks for something.
    return any(type(value) is type(each) and value == each for each in known)


def _describe(message: str) -> ApiError:
    """From "Expected `int`, got `str` - at `$.n`" to a message that starts with the field."""
    match = _PLACE.fullmatch(message)
    text, place = match.groups() if match else (message, None)
    param = (place or "").removeprefix("$").removeprefix(".") or None
    missing = re.fullmatch(r"Object missing required field `(.*)`", text)
    if missing:
        name = f"{param}.{missing.group(1)}" if param else missing.group(1)
        return bad_request(f"{name} is required.", param=name, code="missing_required_parameter")
    plain = text.replace("`", "").replace(" | ", " or ")
    plain = plain[:1].lower() + plain[1:]
    return bad_request(f"{param or 'body'}: {plain}.", param=param, code="invalid_type")


def template_messages(request_messages: list[Message]) -> list[dict[str, Any]]:
    """Messages as chat templates expect them: contents as texts, developer as system.

    Raises ApiError 400 for tool calls and for parts that are no text.
    """
    if not request_messages:
        raise bad_request("messages: must not be empty.", param="messages", code="empty_array")
    return [_template_message(message, at) for at, message in enumerate(request_messages)]


def _template_message(message: Message, at: int) -> dict[str, Any]:
    place = f"messages[{at}]"
    if message.role in ("tool", "function"):
        raise refused("messages.tool", f"{place}.role")
    for name in ("tool_calls", "function_call"):
        if not is_harmless(name, getattr(message, name)):
            raise refused("messages.tool_calls", f"{place}.{name}")
    if not is_harmless("audio", message.audio):
        raise refused("messages.content", f"{place}.audio")
    content = _content_text(message, place)
    return {
        "role": "system" if message.role == "developer" else message.role,
        **({} if content is msgspec.UNSET else {"content": content}),
        "name": message.name,
        "reasoning_content": message.reasoning_content or message.reasoning,
    }


def _content_text(message: Message, place: str) -> str | msgspec.UnsetType | None:
    """The text; None where the client sent null, unset where it sent nothing."""
    content = message.content
    if content is msgspec.UNSET and message.role != "assistant":
        raise bad_request(
            f"{place}.content is required.", f"{place}.content", "missing_required_parameter"
        )
    if not isinstance(content, list):
        return content or message.refusal or content
    texts = []
    for index, part in enumerate(content):
        param = f"{place}.content[{index}]"
        if part.get("type") not in ("text", "refusal"):
            raise refused("messages.content", param)
        text = part.get(part["type"])
        if not isinstance(text, str):
            raise bad_request(f"{param}.text: expected str.", f"{param}.text", "invalid_type")
        texts.append(text)
    return "\n".join(texts)


def refused(name: str, param: str) -> ApiError:
    """400 for what the table of refusals has under `name`."""
    return bad_request(get_refusal("request", name).message, param=param, code="unsupported")


def template_variables(given: dict[str, Any] | None) -> dict[str, Any]:
    """chat_template_kwargs; raises ApiError 400 for names that are not the client's to set."""
    reserved = sorted(RESERVED.intersection(given or {}))
    if reserved:
        raise bad_request(
            f"chat_template_kwargs: {reserved[0]} cannot be set here.",
            param="chat_template_kwargs",
            code="invalid_value",
        )
    return dict(given or {})
