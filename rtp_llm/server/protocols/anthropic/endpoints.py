# SPDX-License-Identifier: Apache-2.0
"""/v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from rtp_llm.server.endpoint.endpoint_base import EndpointBase
from rtp_llm.server.endpoint.http_answer import StreamedAnswer, WholeAnswer
from rtp_llm.server.endpoint.server_sent_events import encode_events
from rtp_llm.server.http.asgi import REQUEST_ID
from rtp_llm.server.protocols.anthropic.events import Ping
from rtp_llm.server.protocols.anthropic.message_answer import MessageAnswer
from rtp_llm.server.protocols.anthropic.message_turn import COUNT_TOKENS, MESSAGE
from rtp_llm.server.protocols.anthropic.writer import MessageWriter

_PING = encode_events([Ping()])


class MessagesEndpoints(EndpointBase):
    """Handlers of one server; each returns a response or raises ApiError."""

    async def create(self, http: Request) -> Response:
        """POST /v1/messages."""
        self._state.check_admission()
        body = await self._read(http)
        request = await self._state.preprocessing.run(MESSAGE, body, self._served_model(http))
        generation = self._generation(request.jobs)
        headers = self._ignored.headers(request.ignored)
        writer, request_id = MessageWriter(request.response_options), http.scope[REQUEST_ID]
        answer = MessageAnswer(writer, generation.usage, request_id)
        if request.stream:
            return StreamedAnswer(self._state, generation, answer, headers, _PING)
        return WholeAnswer(self._state, generation, answer, headers)

    async def count_tokens(self, http: Request) -> Response:
        """POST /v1/messages/count_tokens."""
        body = await self._read(http)
        return self._answer(
            await self._state.preprocessing.run(COUNT_TOKENS, body, self._model(http))
        )
