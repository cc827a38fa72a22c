# SPDX-License-Identifier: Apache-2.0
"""Times as Ollama writes them."""

from __future__ import annotations

from datetime import UTC, datetime

# A model that stays loaded; Ollama says a time three centuries ahead.
NEVER = "2318-01-01T00:00:00Z"


def now() -> str:
    """The present time, RFC 3339 with microseconds."""
    return written(datetime.now(UTC))


def at(seconds: float) -> str:
    """The time so many seconds after the epoch."""
    return written(datetime.fromtimestamp(seconds, UTC))


def written(time: datetime) -> str:
    """A time in UTC."""
    return time.isoformat(timespec="microseconds").replace("+00:00", "Z")
