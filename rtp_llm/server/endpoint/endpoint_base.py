# SPDX-License-Identifier: Apache-2.0
"""Common to the endpoints of all protocols: read a body, have it prepared, start generating."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rtp_llm.engine.messages import EngineReady
from rtp_llm.server.endpoint.ignored_fields import IgnoredFields
from rtp_llm.server.endpoint.server_state import ServerState
from rtp_llm.server.generation.generation import Generation
from rtp_llm.server.http.asgi import read_body
from rtp_llm.server.keys.key_ring import client_of
from rtp_llm.server.turn.prepared import PreparedBody
from rtp_llm.server.turn.sampling import Limits
from rtp_llm.server.turn.served_model import ServedModel
from rtp_llm.server.types.jobs import Job
from rtp_llm.text.tokenizer import Tokenizer

_REASONING_FIELDS = {
    "both": ("reasoning_content", "reasoning"),
    "reasoning_content": ("reasoning_content",),
    "reasoning": ("reasoning",),
}


class EndpointBase:
    """Base of the endpoints of one server."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._ignored = IgnoredFields()
        self._known: tuple[Tokenizer, Limits, EngineReady | None, tuple[str, ...], str] | None = (
            None
        )
        self._last: ServedModel

    def _answer(self, prepared: PreparedBody) -> Response:
        response = json_body(prepared.body)
        response.raw_headers += self._ignored.headers(prepared.ignored)
        return response

    async def _read(self, http: Request) -> bytes:
        return await read_body(http, self._state.settings.max_request_bytes)

    def _served_model(self, http: Request) -> ServedModel:
        """The served model for a request; raises ApiError 503 until engine and tokenizer are up."""
        return self._model(http, self._state.limits)

    def _model(self, http: Request, limits: Limits | None = None) -> ServedModel:
        """Facts about the model; without `limits` they are available before the engine is ready."""
        state = self._state
        if limits is None:
            limits = state.limits if state.engine.ready else Limits(0, 0)
        usable, client = state.usable_names(http.scope), client_of(http.scope)
        known = state.tokenizer, limits, state.engine.ready, usable, client
        if self._known != known:
            self._known, self._last = known, self._new_model(*known)
        return self._last

    def _new_model(
        self,
        tokenizer: Tokenizer,
        limits: Limits,
        ready: EngineReady | None,
        usable: tuple[str, ...],
        client: str,
    ) -> ServedModel:
        state, settings = self._state, self._state.settings
        return ServedModel(
            names=settings.model_names,
            usable=usable,
            tokenizer=tokenizer,
            defaults=state.defaults,
            limits=limits,
            max_sequences=ready.max_running + ready.max_queued if ready else 0,
            strict_fields=settings.strict_fields,
            lenient_media=settings.lenient_media,
            trust_chat_template=settings.trust_request_chat_template,
            max_tokenize_characters=settings.max_tokenize_characters,
            max_logprobs=settings.max_logprobs,
            max_prompt_logprobs=settings.max_prompt_logprobs,
            tool_call_parser=state.syntax.tool_calls,
            reasoning_parser=state.syntax.reasoning,
            reasoning_fields=_REASONING_FIELDS[settings.reasoning_field],
            return_tokens_as_token_ids=settings.return_tokens_as_token_ids,
            vllm_fields=settings.response_compat == "vllm",
            tasks=ready.tasks if ready else (),
            vector_size=ready.vector_size if ready else 0,
            matryoshka=ready.matryoshka if ready else None,
            scored=ready.scored if ready else "last",
            prompts=state.prompts,
            inline=True,
            client=client,
        )

    def _generation(
        self, jobs: Sequence[Job], make: Callable[..., Generation] = Generation
    ) -> Generation:
        self._state.check_admission()
        return make(self._state.engine, self._state.tokenizer, self._state.metrics, jobs)


def json_response(content: Any, status: int = 200) -> Response:
    """A small JSON response."""
    return json_body(msgspec.json.encode(content), status)


def json_body(body: bytes, status: int = 200) -> Response:
    """A small JSON response from an encoded body."""
    return Response(body, status, media_type="application/json")
