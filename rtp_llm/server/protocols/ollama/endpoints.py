# SPDX-License-Identifier: Apache-2.0
"""/api/chat, /api/generate, and the endpoints about the model."""

from __future__ import annotations

import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rtp_llm.server.endpoint.endpoint_base import EndpointBase, json_response
from rtp_llm.server.endpoint.http_answer import StreamedAnswer, WholeAnswer
from rtp_llm.server.protocols.ollama.answers import OllamaProcesses, OllamaTags, OllamaVersion
from rtp_llm.server.protocols.ollama.models import listed_model, running_models, shown_model
from rtp_llm.server.protocols.ollama.names import check_name
from rtp_llm.server.protocols.ollama.ollama_turn import OLLAMA_CHAT, OLLAMA_GENERATE
from rtp_llm.server.protocols.ollama.protocol import OllamaShowRequest
from rtp_llm.server.protocols.ollama.response_options import OllamaResponseOptions
from rtp_llm.server.protocols.ollama.writer import MEDIA_TYPE, OllamaWriter
from rtp_llm.server.turn.body_kind import BodyKind
from rtp_llm.server.turn.parse import parse
from rtp_llm.server.turn.prepared import PreparedBody, PreparedJobs
from rtp_llm.server.types.errors import ApiError

# The Ollama version that is implemented; clients use it to detect features.
VERSION = "0.12.11"
# Maximum size in bytes of a body that only names a model.
MAX_SHOW_BYTES = 2**16


class OllamaEndpoints(EndpointBase):
    """Handlers of one server; each returns a response or raises ApiError."""

    async def chat(self, http: Request) -> Response:
        """POST /api/chat."""
        return await self._generated(http, OLLAMA_CHAT)

    async def generate(self, http: Request) -> Response:
        """POST /api/generate."""
        return await self._generated(http, OLLAMA_GENERATE)

    async def tags(self, request: Request) -> Response:
        """The served model under its names, as Ollama lists it."""
        models = [
            listed_model(self._state, name) for name in self._state.usable_names(request.scope)
        ]
        return json_response(OllamaTags(models=models))

    async def ps(self, request: Request) -> Response:
        """The loaded model, as Ollama lists it."""
        models = running_models(self._state, self._state.usable_names(request.scope))
        return json_response(OllamaProcesses(models=models))

    async def show(self, http: Request) -> Response:
        """POST /api/show."""
        body = await self._read(http)
        if len(body) > MAX_SHOW_BYTES:
            text = f"The body is longer than {MAX_SHOW_BYTES} bytes."
            raise ApiError(413, text, code="request_too_large")
        request, ignored = parse(body, OllamaShowRequest, self._state.settings.strict_fields)
        check_name(request.model or request.name, self._model(http))
        return self._answer(PreparedBody(msgspec.json.encode(shown_model(self._state)), ignored))

    async def version(self) -> Response:
        """The version of Ollama whose API this is."""
        return json_response(OllamaVersion(version=VERSION))

    async def _generated(
        self, http: Request, kind: BodyKind[PreparedJobs[OllamaResponseOptions] | PreparedBody]
    ) -> Response:
        began = time.perf_counter()
        self._state.check_admission()
        body = await self._read(http)
        request = await self._state.preprocessing.run(kind, body, self._served_model(http))
        if isinstance(request, PreparedBody):
            return self._answer(request)
        generation = self._generation(request.jobs)
        headers = self._ignored.headers(request.ignored)
        writer = OllamaWriter(request.response_options, generation, self._state.tokenizer, began)
        if request.stream:
            return StreamedAnswer(self._state, generation, writer, headers, media_type=MEDIA_TYPE)
        return WholeAnswer(self._state, generation, writer, headers)
