# SPDX-License-Identifier: Apache-2.0
"""Endpoints that start and stop the profiler of the engine, named as in vLLM and SGLang."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from rtp_llm.engine.messages import EngineDeadError
from rtp_llm.engine.profile_messages import Profiled, ProfilerError
from rtp_llm.server.endpoint.endpoint_base import json_response
from rtp_llm.server.endpoint.server_state import ServerState
from rtp_llm.server.types.errors import ApiError, bad_request, from_engine

START, STOP = "/start_profile", "/stop_profile"


class ProfileEndpoints:
    """Handlers of one server."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def start(self, request: Request) -> Response:
        """Start recording a trace; says what is recorded."""
        done = await self._call(request, start=True)
        return json_response({"activities": sorted({*done[0].activities})})

    async def stop(self, request: Request) -> Response:
        """Write the trace; says where: a file for each engine process."""
        done = await self._call(request, start=False)
        return json_response({"files": [each.file for each in done]})

    async def _call(self, request: Request, *, start: bool) -> list[Profiled]:
        if (await request.body()).strip() not in (b"", b"{}"):
            raise bad_request(f"{request.url.path} takes no fields; {STOP} ends the trace.")
        try:
            return await self._state.engine.profile(start=start)
        except ProfilerError as error:
            raise ApiError(409, f"{error}.", code="profiler_state") from error
        except EngineDeadError as error:
            raise from_engine(error) from error
