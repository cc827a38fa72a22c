# SPDX-License-Identifier: Apache-2.0
"""Times in Ollama's format."""

from __future__ import annotations

from datetime import UTC, datetime

# Expiry of a model that stays loaded; Ollama reports a time three centuries ahead.
NEVER = "2318-01-01T00:00:00Z"


def now() -> str:
    """The current time in RFC 3339 with microseconds."""
    return written(datetime.now(UTC))


def at(seconds: float) -> str:
    """The time ``seconds`` after the epoch, in Ollama's format."""
    return written(datetime.fromtimestamp(seconds, UTC))


def written(time: datetime) -> str:
    """Format a time in UTC."""
    return time.isoformat(timespec="microseconds").replace("+00:00", "Z")
