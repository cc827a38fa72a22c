# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

from rtp_llm.text.parsers.registry import REASONING_FORMS, TOOL_CALL_FORMS

PAGE = Path(__file__).parents[3] / "docs/tools_and_reasoning.md"


def test_every_form_is_on_the_page() -> None:
    calls, _, reasoning = PAGE.read_text().partition("## Forms of reasoning")
    assert not [form for form in TOOL_CALL_FORMS if f"`{form}`" not in calls]
    assert not [form for form in REASONING_FORMS if f"`{form}`" not in reasoning]
