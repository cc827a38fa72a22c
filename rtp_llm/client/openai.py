# SPDX-License-Identifier: Apache-2.0
"""A client of OpenAI's chat completions, completions and models, for any compatible server."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import msgspec

from rtp_llm.client.events import EventReader
from rtp_llm.client.http import HttpClient

CHAT, COMPLETIONS = "/chat/completions", "/completions"
_VERSION = re.compile(r"/v\d+\w*$")
_SHOWN_CHARACTERS = 500


class ServerError(Exception):
    """The server refused the request, or ended a stream with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{message} (HTTP {status})" if status else message)
        self.status = status
        """HTTP status of the response; 0: the error came in the middle of a stream."""


class Usage(msgspec.Struct, frozen=True):
    """Token counts as reported by the server."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class Delta(msgspec.Struct, frozen=True):
    """The addition of one event to an answer; usually only one field is set."""

    text: str = ""
    reasoning: str = ""
    tool_calls: bool = False
    """It has a part of a tool call."""
    finish_reason: str | None = None
    usage: Usage | None = None

    @property
    def is_output(self) -> bool:
        """Whether it carries output of the model."""
        return bool(self.text or self.reasoning or self.tool_calls)


class _Message(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Message | None = None
    message: _Message | None = None
    finish_reason: str | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Usage | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Answer)


def api_base(url: str) -> str:
    """The base URL of the API, from a server's address with or without `/v1`."""
    url = url.rstrip("/")
    return url if _VERSION.search(url) else f"{url}/v1"


class OpenAIClient:
    """Sends requests to one server. Belongs to one event loop."""

    def __init__(
        self,
        base: str,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        verify: bool = True,
    ) -> None:
        """``base``: the URL before `/chat/completions`; for the others see HttpClient."""
        own = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = HttpClient(base, {**own, **(headers or {})}, verify=verify)

    def close(self) -> None:
        """Close the idle connections; those in use stay open."""
        self._http.close()

    async def models(self, path: str = "/models") -> list[str]:
        """The names of the served models; raises ServerError, OSError."""
        async with self._http.request("GET", path) as response:
            body = await response.read()
        if response.status != 200:
            raise _refusal(response.status, body)
        try:
            return [str(card["id"]) for card in msgspec.json.decode(body)["data"]]
        except (msgspec.DecodeError, LookupError, TypeError) as error:
            raise ServerError(response.status, f"no list of models: {_shorten(body)}") from error

    async def first_model(self, path: str = "/models") -> str:
        """The first of the served models; raises ServerError, OSError, also if there is none."""
        names = await self.models(path)
        if not names:
            raise ServerError(0, "it serves no model that this key may use")
        return names[0]

    async def stream(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[Delta, None]:
        """Yield the deltas of a request; without ``"stream": true`` its whole answer is one delta.

        Closing the iterator early makes the server stop.

        Raises:
            ServerError: the request was refused, or its answer ended with an error.
            OSError: the connection failed, or ended before the answer was complete.
        """
        async with self._http.request("POST", path, msgspec.json.encode(body)) as response:
            kind = response.headers.get("content-type", "")
            if response.status != 200 or not kind.startswith("text/event-stream"):
                whole = await response.read()
                if response.status != 200:
                    raise _refusal(response.status, whole)
                yield _read(whole)
                return
            reader = EventReader()
            async for chunk in response.chunks():
                for data in reader.feed(chunk):
                    if data != b"[DONE]":
                        yield _read(data)


def _read(data: bytes) -> Delta:
    try:
        answer = _DECODER.decode(data)
    except msgspec.DecodeError as error:
        raise ServerError(0, f"an event cannot be read ({error}): {_shorten(data)}") from error
    if answer.error is not None:
        raise ServerError(0, _error_text(answer.error))
    choice = answer.choices[0] if answer.choices else _Choice()
    message = choice.delta or choice.message or _Message()
    return Delta(
        text=choice.text or message.content or "",
        reasoning=message.reasoning_content or message.reasoning or "",
        tool_calls=bool(message.tool_calls),
        finish_reason=choice.finish_reason,
        usage=answer.usage,
    )


def _refusal(status: int, body: bytes) -> ServerError:
    try:
        content = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return ServerError(status, _shorten(body))
    if isinstance(content, dict):
        content = content.get("error", content.get("detail", content))
    return ServerError(status, _error_text(content))


def _error_text(error: Any) -> str:
    if isinstance(error, dict) and "message" in error:
        error = error["message"]
    return error if isinstance(error, str) else _shorten(msgspec.json.encode(error))


def _shorten(body: bytes) -> str:
    text = " ".join(body.decode(errors="replace").split())
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."
