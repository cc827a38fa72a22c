# SPDX-License-Identifier: Apache-2.0
"""The formats of the served model's tool calls and reasoning: configured or detected."""

from __future__ import annotations

from collections.abc import Sequence

from rtp_llm.config.options import SettingsError
from rtp_llm.config.settings import Settings
from rtp_llm.text.parsers.registry import (
    REASONING_FORMS,
    TOOL_CALL_FORMS,
    Detected,
    detect,
    reads_channels,
)
from rtp_llm.text.tokenizer import Tokenizer

NONE = "none"


def check_syntax(settings: Settings) -> None:
    """Raise SettingsError for an unknown format, or for two incompatible ones."""
    calls, reasoning = settings.tool_call_parser, settings.reasoning_parser
    _check("tool_call_parser", calls, TOOL_CALL_FORMS)
    _check("reasoning_parser", reasoning, REASONING_FORMS)
    _check_together(calls and _set(calls), reasoning and _set(reasoning))


def choose_syntax(settings: Settings, tokenizer: Tokenizer) -> Detected:
    """The formats, with a readable explanation of how they were chosen.

    Raises SettingsError if a configured format is incompatible with a detected one.
    """
    found = detect(tokenizer.chat_template or "", tokenizer, tokenizer.special_tokens)
    calls, reasoning, why = found.tool_calls, found.reasoning, found.why
    if settings.tool_call_parser is not None:
        calls = _set(settings.tool_call_parser)
        why += f"; tool calls set to {calls or NONE} by --tool-call-parser"
    if settings.reasoning_parser is not None:
        reasoning = _set(settings.reasoning_parser)
        why += f"; reasoning set to {reasoning or NONE} by --reasoning-parser"
    _check_together(calls, reasoning)
    return Detected(calls, reasoning, why)


def _set(name: str) -> str | None:
    return None if name == NONE else name


def _check(setting: str, name: str | None, known: Sequence[str]) -> None:
    if name is not None and name != NONE and name not in known:
        listed = ", ".join([NONE, *sorted(known)])
        raise SettingsError(f"{setting}: {name!r} is not known; there are {listed}")


def _check_together(calls: str | None, reasoning: str | None) -> None:
    """A parser of channels reads calls, reasoning and text, so it excludes other parsers."""
    if calls is None or reasoning is None or reads_channels(calls) == reads_channels(reasoning):
        return
    raise SettingsError(
        f"tool_call_parser: {calls} reads {_marks(calls)}, and reasoning_parser: {reasoning} reads "
        f"{_marks(reasoning)}, which no model writes in one answer; set --tool-call-parser or "
        "--reasoning-parser to a form of the same kind, or to none"
    )


def _marks(syntax: str) -> str:
    return "channels" if reads_channels(syntax) else "tags"
