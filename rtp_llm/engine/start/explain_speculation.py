# SPDX-License-Identifier: Apache-2.0
"""What `rtp-llm explain` says about speculative decoding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rtp_llm.worker.speculative.methods import drafts_on_device

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings
    from rtp_llm.device import Device

_WAITS = (
    "the host finds them, so steps of a sequence do not overlap: its drafts wait for the tokens of "
    "the step before"
)
_CONSTRAINED = (
    "of requests with a grammar or a budget of thinking, whose steps do not overlap; all others do"
)
_ON_DEVICE = (
    "the device makes the next drafts; where steps overlap, the next one is planned as if all were "
    "right"
)


def explain_speculation(settings: Settings, device: Device) -> str:
    """One line: who drafts, how many tokens by load, and whether steps overlap."""
    method = settings.speculative
    if method == "none":
        return "speculation: none"
    length = f"up to {settings.num_speculative_tokens} drafts"
    if table := settings.draft_table:
        rows = (f"{tokens} up to {last} sequences" for _, last, tokens in table)
        length = f"drafts by batch size: {', '.join(rows)}, {table[-1][2]} above"
    elif settings.speculative_adaptive:
        length += ", fewer or none where measured steps show that they lose"
    if settings.samples_drafts:
        method += " with drafts sampled at each request's temperature"
    overlap = _ON_DEVICE if drafts_on_device(settings, device) else _WAITS
    if method == "grammar":
        overlap = _CONSTRAINED
    return f"speculation: {method}, {length}; {overlap}"
