# SPDX-License-Identifier: Apache-2.0
"""Endpoints that answer with vectors, scores or labels of their inputs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Generic, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Send

from rtp_llm.server.endpoint.endpoint_base import EndpointBase
from rtp_llm.server.endpoint.http_answer import EngineAnswer
from rtp_llm.server.endpoint.server_state import ServerState
from rtp_llm.server.generation.pooling import Pooling
from rtp_llm.server.http.asgi import send_json
from rtp_llm.server.turn.body_kind import BodyKind
from rtp_llm.server.turn.prepared import PreparedBody, PreparedPrompts
from rtp_llm.server.types.jobs import PromptBatch

# Bytes of an answer that are written at a time, so that other requests are not delayed.
_SLICE_BYTES = 2**18

F = TypeVar("F")


@dataclass(frozen=True)
class Pooled:
    """What the engine pooled of the inputs of a request, in their order: float32 `values`.

    `lengths`: tokens of each input; `cached_tokens`: of all.
    """

    values: bytes
    lengths: Sequence[int]
    cached_tokens: int = 0

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all inputs."""
        return sum(self.lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def rows(self) -> Iterator[memoryview]:
        """The bytes of each input's vector; all are equally long."""
        size, view = len(self.values) // len(self.lengths), memoryview(self.values)
        return (view[start : start + size] for start in range(0, len(view), size))

    def numbers(self) -> Iterator[list[float]]:
        """The numbers of each input's vector."""
        return map(floats, self.rows())

    def token_rows(self) -> Iterator[memoryview]:
        """The bytes of each input that has a row for each of its tokens."""
        width, view = len(self.values) // self.prompt_tokens, memoryview(self.values)
        for first, last in pairwise(accumulate(self.lengths, initial=0)):
            yield view[first * width : last * width]

    def token_numbers(self) -> Iterator[list[list[float]]]:
        """The numbers of each token of each input."""
        size = len(self.values) // self.prompt_tokens
        for row in self.token_rows():
            yield [floats(row[at : at + size]) for at in range(0, len(row), size)]


def separated(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The entries of a JSON list or object, with commas between them."""
    for index, part in enumerate(parts):
        yield b"," + part if index else part


def floats(row: memoryview) -> list[float]:
    """The float32 numbers of a row."""
    numbers: Any = row.cast("f").tolist()
    found: list[float] = numbers
    return found


@dataclass(frozen=True)
class PooledEndpoint(Generic[F]):
    """POST `path`: `kind` prepares its body, and `write` gives the parts of the answer's JSON.
    `about`: its line in the list of endpoints."""

    path: str
    about: str
    kind: BodyKind[PreparedPrompts[F] | PreparedBody]
    write: Callable[[F, Pooled], Iterable[bytes]]


class PooledEndpoints(EndpointBase):
    """Handlers of one server; each returns a response or raises ApiError."""

    def handler(self, endpoint: PooledEndpoint[Any]) -> Callable[[Request], Awaitable[Response]]:
        """The handler of an endpoint."""

        async def handle(http: Request) -> Response:
            return await self._pooled(http, endpoint)

        handle.__doc__ = endpoint.about
        return handle

    async def _pooled(self, http: Request, endpoint: PooledEndpoint[F]) -> Response:
        state = self._state
        state.check_admission()
        body = await self._read(http)
        request = await state.preprocessing.run(endpoint.kind, body, self._served_model(http))
        if isinstance(request, PreparedBody):
            return self._answer(request)
        state.check_admission()
        pooling = Pooling(state.engine, state.metrics, request.batch)
        headers = self._ignored.headers(request.ignored)
        return PooledAnswer(state, pooling, request, endpoint.write, headers)


class PooledAnswer(EngineAnswer[Pooling], Generic[F]):
    """One JSON body, written when everything is pooled."""

    def __init__(
        self,
        state: ServerState,
        pooling: Pooling,
        request: PreparedPrompts[F],
        write: Callable[[F, Pooled], Iterable[bytes]],
        more_headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        super().__init__(state, pooling, more_headers)
        self._batch: PromptBatch = request.batch
        self._options, self._write = request.response_options, write

    async def _generate(self, send: Send) -> None:
        values = await self.generation.pooled()
        cached = self.generation.usage.cached_tokens
        pooled, parts, size = Pooled(values, self._batch.lengths, cached), [], 0
        for part in self._write(self._options, pooled):
            parts.append(part)
            size += len(part)
            if size > _SLICE_BYTES:
                size = 0
                await asyncio.sleep(0)
        await send_json(send, 200, b"".join(parts), self._more_headers)
