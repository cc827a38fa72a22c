# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from pathlib import Path

import pytest

from rtp_llm.config import document, other_engines, refusals
from rtp_llm.config.command_line import build_parser, flag_name, load_settings
from rtp_llm.config.options import SettingsError, plain_number
from rtp_llm.config.settings import options

NOT_OURS = {"--config", "--local-dir"}
DOCS = Path(__file__).parents[2] / "docs"


def test_settings_page_is_current() -> None:
    page = (DOCS / "settings.md").read_text()
    assert page == document.render(), "run: python -m rtp_llm.config.document > docs/settings.md"


def test_settings_page_names_every_option() -> None:
    for name in options():
        assert f"`RTP_LLM_{name.upper()}`" in document.render()


def test_numbers_are_written_without_exponents() -> None:
    exponent = re.compile(r"\d[eE][+-]?\d")
    help_text = build_parser().format_help()
    for text in (document.render(), refusals.render(), help_text, load_settings([], {}).describe()):
        assert not exponent.search(text)
    assert "integer 1 to 1048576" in document.render()
    for name, info in options().items():
        if info.maximum is not None:
            with pytest.raises(SettingsError) as caught:
                load_settings([flag_name(name), "9" * 30], {})
            assert not exponent.search(str(caught.value)), name
            assert f"the maximum {info.maximum}" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2**40, "1099511627776"),
        (1e-7, "0.0000001"),
        (3600.0, "3600"),
        (0.25, "0.25"),
        (1e22, "10000000000000000000000"),
        (-0.5, "-0.5"),
    ],
)
def test_plain_numbers(value: float, text: str) -> None:
    assert plain_number(value) == text


@pytest.mark.parametrize(
    ("name", "table"), [("from_vllm", "table"), ("from_llama_cpp", "llama_cpp_table")]
)
def test_the_pages_for_users_of_other_engines_have_their_flags(name: str, table: str) -> None:
    page = (DOCS / f"{name}.md").read_text()
    lines = getattr(other_engines, table)()
    assert "\n".join(lines) in page, f"replace it by other_engines.{table}()"
    for flag in re.findall(r"`(--[a-z0-9-]+)", page):
        name = flag.removeprefix("--").replace("-", "_")
        assert name in options() or other_engines.known_elsewhere(name) or flag in NOT_OURS, flag


def test_refusals_page_is_current() -> None:
    page = (DOCS / "refusals.md").read_text()
    assert page == refusals.render(), "run: python -m rtp_llm.config.refusals > docs/refusals.md"


def test_refusals_are_whole() -> None:
    for refusal in refusals.REFUSALS:
        assert refusal.reason.endswith("."), refusal
        assert refusal.change.endswith("."), refusal
    keys = [
        (refusal.area, refusal.name, device)
        for refusal in refusals.REFUSALS
        for device in refusal.device_names
    ]
    assert len(keys) == len(set(keys))
