"""Which forms the tool calls and the thinking of the served model have: as set, or as found."""

from __future__ import annotations

from collections.abc import Sequence

from rtp_llm.config.options import SettingsError
from rtp_llm.config.settings import Settings
from rtp_llm.text.parsers.registry import REASONING_FORMS, TOOL_CALL_FORMS, Detected, detect
from rtp_llm.text.tokenizer import Tokenizer

NONE = "none"


def check_forms(settings: Settings) -> None:
    """Raise SettingsError for a form that is not known."""
    _check("tool_call_parser", settings.tool_call_parser, TOOL_CALL_FORMS)
    _check("reasoning_parser", settings.reasoning_parser, REASONING_FORMS)


def choose_forms(settings: Settings, tokenizer: Tokenizer) -> Detected:
    """The forms, and how they were told, for people."""
    found = detect(tokenizer.chat_template or "", tokenizer)
    calls, reasoning, why = found.tool_calls, found.reasoning, found.why
    if settings.tool_call_parser is not None:
        calls = _set(settings.tool_call_parser)
        why += f"; tool calls set to {calls or NONE} by --tool-call-parser"
    if settings.reasoning_parser is not None:
        reasoning = _set(settings.reasoning_parser)
        why += f"; reasoning set to {reasoning or NONE} by --reasoning-parser"
    return Detected(calls, reasoning, why)


def _set(name: str) -> str | None:
    return None if name == NONE else name


def _check(setting: str, name: str | None, known: Sequence[str]) -> None:
    if name is not None and name != NONE and name not in known:
        listed = ", ".join([NONE, *sorted(known)])
        raise SettingsError(f"{setting}: {name!r} is not known; there are {listed}")
