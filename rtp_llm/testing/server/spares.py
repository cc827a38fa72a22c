# SPDX-License-Identifier: Apache-2.0
"""Whether a server of a test has a process that waits for its engine's end."""

from __future__ import annotations

import os

from rtp_llm.engine.client import rank_group


def keep_spares_if_asked() -> None:
    """In a server of a test: none, as each takes seconds, or with FAKE_SPARE=1 one at once."""
    wanted = os.environ.get("FAKE_SPARE") == "1"
    rank_group.SPARE_SECONDS = 0.0 if wanted else 1e6
