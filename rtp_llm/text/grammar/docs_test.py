# SPDX-License-Identifier: Apache-2.0
"""docs/structured_output.md: its code prints what stands below it; formats are listed."""

from __future__ import annotations

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from rtp_llm.text.grammar.schema.formats import ANNOTATIONS, FORMATS

PAGE = Path(__file__).parents[3] / "docs" / "structured_output.md"
_EXAMPLE = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)


def test_examples_print_what_the_page_says() -> None:
    examples = _EXAMPLE.findall(PAGE.read_text())
    assert examples
    for code, expected in examples:
        printed = StringIO()
        with redirect_stdout(printed):
            exec(code, {})
        assert printed.getvalue() == expected


def test_formats_are_listed() -> None:
    text = PAGE.read_text()
    assert [name for name in (*FORMATS, *ANNOTATIONS) if f"`{name}`" not in text] == []
