# SPDX-License-Identifier: Apache-2.0
"""Reasoning in an opaque field that clients send back: encrypted_content, signature.

It is encoded, not encrypted, as the same client may also request it as plain text. When a client
sends it back, the model sees its reasoning from before the tool call.
"""

from __future__ import annotations

import base64
import binascii

_MARK = "rtp-llm-1:"


def seal(reasoning: str) -> str:
    """Encode reasoning text for an opaque field."""
    return _MARK + base64.b64encode(reasoning.encode()).decode()


def unseal(field: str) -> str | None:
    """Decode a field written by `seal`; None for fields of other servers."""
    if not field.startswith(_MARK):
        return None
    try:
        return base64.b64decode(field[len(_MARK) :], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
