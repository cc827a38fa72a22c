from __future__ import annotations

from pathlib import Path

from rtp_llm.config import document, refusals
from rtp_llm.config.settings import options

DOCS = Path(__file__).parents[2] / "docs"


def test_settings_page_is_current() -> None:
    page = (DOCS / "settings.md").read_text()
    assert page == document.render(), "run: python -m rtp_llm.config.document > docs/settings.md"


def test_settings_page_names_every_option() -> None:
    for name in options():
        assert f"`RTP_LLM_{name.upper()}`" in document.render()


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
