# SPDX-License-Identifier: Apache-2.0
"""The longest body that is rendered in the event loop: shorter if the template is slow."""

from __future__ import annotations

import logging
import time

# Rendering for more seconds than this would stall streams.
SLOW_RENDER_SECONDS = 0.02
# Seconds during which bodies as long as a slow one go to a process; doubled on each repetition.
BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 10.0, 600.0

_log = logging.getLogger("rtp_llm.server")


class InlineLimit:
    """Size in bytes of the longest body that the event loop renders. Belongs to an event loop.

    The template's own speed has a permanent effect. A slow body affects bodies of at least its
    length for a while only, as the next one may be different.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._limit: int | None = None
        self._backoff, self._until = 0.0, 0.0

    def set_template_speed(self, seconds: float) -> None:
        """Set the limit from the seconds that the template takes for a body of maximum length."""
        if seconds > SLOW_RENDER_SECONDS:
            self._most = int(self._most * SLOW_RENDER_SECONDS / seconds)
            text = "the chat template is slow: chats longer than %d bytes go to a process"
            _log.warning(text, self._most)

    def takes(self, size: int) -> bool:
        """Whether a body of ``size`` bytes may be rendered in the event loop."""
        if self._limit is not None and time.monotonic() >= self._until:
            _log.info("chats of up to %d bytes are rendered at once again", self._most)
            self._limit = None
        return size <= (self._most if self._limit is None else self._limit)

    def note(self, size: int, seconds: float) -> None:
        """Record the size of a rendered body in bytes and its CPU time in seconds."""
        if seconds <= SLOW_RENDER_SECONDS:
            return
        now = time.monotonic()
        recent = now < self._until + MAX_BACKOFF_SECONDS
        self._backoff = min(2 * self._backoff, MAX_BACKOFF_SECONDS) if recent else 0.0
        self._backoff = self._backoff or BACKOFF_SECONDS
        self._until = now + self._backoff
        if self._limit is None:
            text = "rendering a chat of %d bytes took %.0f ms: such ones go to a process for %.0f s"
            _log.warning(text, size, 1e3 * seconds, self._backoff)
        self._limit = min(size - 1, self._most if self._limit is None else self._limit)
