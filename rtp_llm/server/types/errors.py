# SPDX-License-Identifier: Apache-2.0
"""Errors in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rtp_llm.engine.messages import EngineDeadError, RequestError

INVALID = "invalid_request_error"
SERVER = "server_error"
RETRY_SECONDS = 1


class ApiError(Exception):
    """An error response; `param` is the field at fault, `code` a short, stable name."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def content(self) -> dict[str, Any]:
        """{"error": {message, type, param, code}}."""
        error = {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }
        return {"error": error}

    def body(self) -> bytes:
        """The content as JSON."""
        return msgspec.json.encode(self.content())


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A 400 error for an invalid request."""
    return ApiError(400, message, param=param, code=code)


def too_expensive(what: str) -> ApiError:
    """A 400 error: preparing the request would take `what`."""
    return bad_request(f"Preparing this request takes {what}.", code="request_too_expensive")


def unknown_model(requested: str, served: Sequence[str]) -> ApiError:
    """A 404 error for a model that is not served. `served`: the names of the served model."""
    names = ", ".join(map(repr, served))
    message = f"The model {requested!r} does not exist; this server serves {names}."
    return ApiError(404, message, param="model", code="model_not_found")


def no_access(model: str) -> ApiError:
    """A 403 error for a model that the request's API key may not use."""
    message = f"This API key has no access to the model {model!r}."
    return ApiError(403, message, param="model", code="model_not_found")


def unavailable(message: str, code: str) -> ApiError:
    """A 503 error: the server accepts no requests now; retry, perhaps on another server."""
    headers = {"Retry-After": str(RETRY_SECONDS)}
    return ApiError(503, message, kind=SERVER, code=code, headers=headers)


def queue_full(message: str, code: str = "queue_full") -> ApiError:
    """A 429 error: the server is at capacity; retry later."""
    headers = {"Retry-After": str(RETRY_SECONDS)}
    return ApiError(429, message, kind="rate_limit_error", code=code, headers=headers)


def internal(message: str = "internal error; the server's log has the details") -> ApiError:
    """A 500 error for a defect of the server."""
    return ApiError(500, message, kind=SERVER, code="internal_error")


def from_engine(error: RequestError | EngineDeadError) -> ApiError:
    """The error for the client when the engine refuses a request or dies."""
    if isinstance(error, EngineDeadError):
        return unavailable(f"The engine has stopped: {error}.", "engine_dead")
    if error.kind == "queue_full":
        return queue_full(error.message)
    if error.kind == "stalled":
        text = error.message[:1].upper() + error.message[1:] + "."
        return ApiError(408, text, code="read_too_slowly")
    if error.kind == "invalid":
        return bad_request(error.message, code="invalid_value")
    if error.kind in ("no_allowed_tokens", "too_few_sequences"):
        return bad_request(error.message, code=error.kind)
    if error.kind == "model_produced_nan":
        return ApiError(500, error.message, kind=SERVER, code=error.kind)
    return internal(error.message)
