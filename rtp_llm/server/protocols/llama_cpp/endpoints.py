# SPDX-License-Identifier: Apache-2.0
"""/infill."""

from __future__ import annotations

import functools
import time

from starlette.requests import Request
from starlette.responses import Response

from rtp_llm.server.endpoint.endpoint_base import EndpointBase
from rtp_llm.server.endpoint.http_answer import StreamedAnswer, WholeAnswer
from rtp_llm.server.protocols.llama_cpp.generation import TimedGeneration
from rtp_llm.server.protocols.llama_cpp.infill_turn import INFILL
from rtp_llm.server.protocols.llama_cpp.writer import InfillWriter


class LlamaCppEndpoints(EndpointBase):
    """Handlers of one server; each returns a response or raises ApiError."""

    async def infill(self, http: Request) -> Response:
        """POST /infill."""
        began = time.perf_counter()
        state = self._state
        state.check_admission()
        body = await self._read(http)
        request = await state.preprocessing.run(INFILL, body, self._served_model(http))
        timed = functools.partial(TimedGeneration, seconds=request.response_options.predict_seconds)
        generation = self._generation(request.jobs, timed)
        headers = self._ignored.headers(request.ignored)
        writer = InfillWriter(request.response_options, generation, began)
        if request.stream:
            return StreamedAnswer(state, generation, writer, headers)
        return WholeAnswer(state, generation, writer, headers)
