# SPDX-License-Identifier: Apache-2.0
"""The HTTP server: OpenAI protocol, streaming, admission, metrics. Never imports torch."""

from __future__ import annotations
