# SPDX-License-Identifier: Apache-2.0
"""Parses a request body into a checked struct, or raises a 400 that names the field."""

from __future__ import annotations

import re
from typing import Any, TypeAlias, TypeVar

import msgspec

from rtp_llm.config.refusals import OTHER_ENDPOINTS, find_refusal, get_refusal
from rtp_llm.server.turn.served_model import ServedModel
from rtp_llm.server.types.bounds import check_bounds
from rtp_llm.server.types.errors import ApiError, bad_request
from rtp_llm.server.types.openai_bodies import CompletionRequest, StreamOptions

T = TypeVar("T", bound=msgspec.Struct)
Body: TypeAlias = bytes | dict[str, Any]  # as it came, or as `decode` returns it

# Known fields that cannot affect the text: the provider's accounting, routing and storage.
IGNORED_FIELDS = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "request_id",
    }
)
# Values of a refused field that request nothing beyond the default.
HARMLESS: dict[str, tuple[Any, ...]] = {
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "length_penalty": (1, 1.0),
    "num_beams": (1,),
    "num_beam_groups": (1,),
    "diversity_penalty": (0, 0.0),
    "mirostat": (0,),
    "repeat_penalty": (1, 1.0),
    "verbosity": ("medium",),
}
# Unknown fields that are reported to the client: how many names, and characters per name.
MAX_IGNORED, MAX_IGNORED_LENGTH = 16, 64
_ODD = re.compile(r"[^A-Za-z0-9_.-]")
_EMPTY: tuple[Any, ...] = (None, False, "", [], {})
_PLACE = re.compile(r"(.*?)(?: - at `(.*)`)?", re.DOTALL)


def parse(body: Body, kind: type[T], strict: bool = False) -> tuple[T, tuple[str, ...]]:
    """Decode `body` as `kind`; also returns the names of unknown fields.

    Unknown fields with null, false or empty values are not named; `strict` refuses all others. The
    names are sanitised for use in a header. Fields in IGNORED_FIELDS are accepted and ignored.
    Raises ApiError 400: bad JSON, a wrong type (naming the field), a field that is refused.
    """
    content = decode(body) if isinstance(body, bytes) else body
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
        return _convert(content, kind), plain_names(unknown)
    except msgspec.ValidationError as error:
        raise _describe(str(error)) from error


def _convert(content: dict[str, Any], kind: type[T]) -> T:
    """Convert to `kind`; if that fails, retry with 5.0 as 5, an integer in JSON Schema, too."""
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
    """Whether a field is unknown; raises ApiError 400 for one that is known but unsupported."""
    if name in kind.__struct_fields__ or name in IGNORED_FIELDS:
        return False
    if is_harmless(name, value):
        return False
    refusal = find_refusal("completion", name) if kind is CompletionRequest else None
    refusal = refusal or find_refusal("request", name) or find_refusal(OTHER_ENDPOINTS, name)
    if refusal is not None:
        raise bad_request(refusal.message, param=name, code="unsupported")
    return True


def plain_names(names: list[str]) -> tuple[str, ...]:
    """The first few names, truncated, without characters that are special in a header."""
    shown = [_ODD.sub("?", name[:MAX_IGNORED_LENGTH]) for name in names[:MAX_IGNORED]]
    return tuple(shown if len(names) <= MAX_IGNORED else [*shown, "..."])


def decode(body: bytes) -> dict[str, Any]:
    """Decode the JSON object of a body; raises ApiError 400."""
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
    """Whether this value of a refused field requests nothing."""
    known = (*_EMPTY, *HARMLESS.get(name, ()))
    # Compare types, too: 0 equals False, but `thinking_budget: 0` is a request.
    return any(type(value) is type(each) and value == each for each in known)


def _describe(message: str) -> ApiError:
    """Turn "Expected `int`, got `str` - at `$.n`" into a message that starts with the field."""
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


def parse_request(
    body: Body, kind: type[T], model: ServedModel, strict: bool = True
) -> tuple[T, tuple[str, ...]]:
    """Parse a request; returns it and its unknown fields. `strict`: apply --strict-fields.

    Raises ApiError, as `parse` and ModelFacts.check_name do.
    """
    request, ignored = parse(body, kind, strict and model.strict_fields)
    requested: str | None = getattr(request, "model", None)
    if requested is not None:
        model.check_name(requested)
    return request, ignored


def refused(name: str, param: str, area: str = "request") -> ApiError:
    """A 400 error with the table's reason for refusing `name`."""
    return bad_request(get_refusal(area, name).message, param=param, code="unsupported")


def convert_at(value: object, kind: Any, place: str) -> Any:
    """Convert a part of a body to `kind`; raises ApiError 400 naming the field below `place`."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text, found, path = str(error).partition(" - at `$")
        raise _describe(f"{text} - at `$.{place}{path if found else '`'}") from error
