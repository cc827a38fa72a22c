# SPDX-License-Identifier: Apache-2.0
"""Reports ignored request fields to clients and operators."""

from __future__ import annotations

import logging
from collections.abc import Sequence

HEADER = b"x-rtp-llm-ignored-fields"
MAX_REMEMBERED = 1024

_log = logging.getLogger("rtp_llm.server")


class IgnoredFields:
    """Logs each ignored field once, however often it is sent."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def headers(self, names: Sequence[str]) -> list[tuple[bytes, bytes]]:
        """The response headers that list ignored fields; `names` as returned by `parse`."""
        if not names:
            return []
        new = [name for name in names if name not in self._logged]
        if new and len(self._logged) < MAX_REMEMBERED:
            self._logged.update(new)
            _log.warning("unknown fields of requests are ignored: %s", ", ".join(new))
        return [(HEADER, ", ".join(names).encode("ascii"))]
