# SPDX-License-Identifier: Apache-2.0
"""Why a server cannot start."""

from __future__ import annotations


class StartError(RuntimeError):
    """The message says what to change."""
