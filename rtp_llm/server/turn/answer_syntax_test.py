# SPDX-License-Identifier: Apache-2.0
"""The syntax of calls and thinking: set, found, and named in the documentation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rtp_llm.config.options import SettingsError
from rtp_llm.config.settings import Settings
from rtp_llm.server.turn.answer_syntax import check_syntax, choose_syntax
from rtp_llm.testing.server.agents import agent_tokenizer
from rtp_llm.text.parsers.registry import REASONING_FORMS, TOOL_CALL_FORMS

PAGE = Path(__file__).parents[3] / "docs/tools_and_reasoning.md"


@pytest.mark.parametrize(
    ("given", "syntax"),
    [
        ({}, ("hermes", "qwen3")),
        ({"tool_call_parser": "mistral"}, ("mistral", "qwen3")),
        ({"tool_call_parser": "none"}, (None, "qwen3")),
        ({"reasoning_parser": "deepseek_r1"}, ("hermes", "deepseek_r1")),
        ({"reasoning_parser": "none"}, ("hermes", None)),
    ],
)
def test_what_is_set_wins_over_what_is_found(
    given: dict[str, Any], syntax: tuple[Any, Any]
) -> None:
    settings = Settings(model="x", **given)
    check_syntax(settings)
    chosen = choose_syntax(settings, agent_tokenizer())
    assert (chosen.tool_calls, chosen.reasoning) == syntax
    assert "the chat template has" in chosen.why
    for name in given:
        assert f"--{name.replace('_', '-')}" in chosen.why


@pytest.mark.parametrize("name", ["tool_call_parser", "reasoning_parser"])
def test_an_unknown_form_lists_those_that_are_known(name: str) -> None:
    given: dict[str, Any] = {name: "no-such"}
    with pytest.raises(SettingsError, match=f"{name}: 'no-such' is not known; there are none, "):
        check_syntax(Settings(model="x", **given))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tool_call_parser": "gpt-oss"}, "gpt-oss reads channels, and .* qwen3 reads tags"),
        (
            {"reasoning_parser": "openai_gptoss"},
            "hermes reads tags, and .*: openai_gptoss reads channels",
        ),
    ],
)
def test_channels_go_with_no_other_form(given: dict[str, Any], said: str) -> None:
    settings = Settings(model="x", **given)
    with pytest.raises(SettingsError, match=said) as raised:
        choose_syntax(settings, agent_tokenizer())
    for name in ("tool_call_parser", "reasoning_parser"):
        assert f"--{name.replace('_', '-')}" in str(raised.value)


@pytest.mark.parametrize(
    "given",
    [
        {"tool_call_parser": "harmony", "reasoning_parser": "gpt-oss"},
        {"tool_call_parser": "harmony", "reasoning_parser": "none"},
        {"tool_call_parser": "none", "reasoning_parser": "gpt-oss"},
    ],
)
def test_channels_go_with_themselves_and_with_none(given: dict[str, Any]) -> None:
    choose_syntax(Settings(model="x", **given), agent_tokenizer())


def test_forms_that_do_not_go_together_stop_the_start_at_once() -> None:
    with pytest.raises(SettingsError, match="openai reads channels"):
        check_syntax(Settings(model="x", tool_call_parser="openai", reasoning_parser="qwen3"))


@pytest.mark.parametrize(
    ("title", "syntax"), [("tool calls", TOOL_CALL_FORMS), ("reasoning", REASONING_FORMS)]
)
def test_the_page_names_the_forms(title: str, syntax: tuple[str, ...]) -> None:
    section = PAGE.read_text().partition(f"## Forms of {title}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]+) \|([^|]*)\|", section, re.MULTILINE)
    named = {name for row in rows[1:] for name in re.findall(r"`([^`]+)`", "".join(row))}
    assert named == set(syntax)
