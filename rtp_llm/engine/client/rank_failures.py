# SPDX-License-Identifier: Apache-2.0
"""Which of several dead ranks died first, and of what."""

from __future__ import annotations

from collections.abc import Sequence

# How a rank that lost another one begins its message; the message of that other one is the reason.
_SURVIVOR = "lost contact to another rank"
# A killed rank may be found dead after its survivors, who see their connections end. It is looked
# for so often: in counted steps, since a process that waits for a core delays a dying one as well.
LOOKS, LOOK_SECONDS = 50, 0.01


def names_cause(failures: Sequence[str | None]) -> bool:
    """Whether one of these failures is not a consequence of another one."""
    return any(text and _SURVIVOR not in text for text in failures)


def first_cause(failures: Sequence[str | None]) -> str:
    """The failure that caused the others, with its rank; at least one must be known."""
    said = [(rank, text) for rank, text in enumerate(failures) if text]
    rank, text = min(said, key=lambda each: _SURVIVOR in each[1])
    return f"rank {rank}: {text}"
