# SPDX-License-Identifier: Apache-2.0
"""Reasoning in a field that clients keep and send back unread: encrypted_content, signature.

It is encoded, not encrypted: the same client may ask for it in plain text. A client that sends it
back lets the model see what it thought before its tool was called.
"""

from __future__ import annotations

import base64
import binascii

_MARK = "rtp-llm-1:"


def seal(reasoning: str) -> str:
    """The text as such a field has it."""
    return _MARK + base64.b64encode(reasoning.encode()).decode()


def unseal(field: str) -> str | None:
    """The text in a field that `seal` wrote; None for those of other servers."""
    if not field.startswith(_MARK):
        return None
    try:
        return base64.b64decode(field[len(_MARK) :], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
