# SPDX-License-Identifier: Apache-2.0
"""Settings of the engine and the table of what is refused. Imports nothing of ours."""

from __future__ import annotations

from rtp_llm.config.options import SettingsError
from rtp_llm.config.settings import Settings

__all__ = ["Settings", "SettingsError"]
