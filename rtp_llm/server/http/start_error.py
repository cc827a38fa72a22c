# SPDX-License-Identifier: Apache-2.0
"""The error of a server that cannot start."""

from __future__ import annotations


class StartError(RuntimeError):
    """The server cannot start; the message says what to change."""
