# SPDX-License-Identifier: Apache-2.0
"""Errors in Anthropic's shape."""

from __future__ import annotations

import msgspec

from rtp_llm.server.types.errors import ApiError

PATH = "/v1/messages"
# Error types by status; other statuses from 400 to 499 are client errors.
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class MessageError(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What went wrong."""

    type: str
    message: str


class MessageErrorAnswer(
    msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="error"
):
    """The body of every error response; also the event of an interrupted stream."""

    error: MessageError
    request_id: str | None = None


def message_error(error: ApiError, request_id: str | None = None) -> MessageErrorAnswer:
    """Convert an error to Anthropic's shape; the field at fault is named in the message."""
    other = "invalid_request_error" if error.status < 500 else "api_error"
    kind = _TYPES.get(error.status, other)
    shown = MessageError(type=kind, message=error.message)
    return MessageErrorAnswer(error=shown, request_id=request_id)
