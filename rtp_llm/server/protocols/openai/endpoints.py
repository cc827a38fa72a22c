# SPDX-License-Identifier: Apache-2.0
"""The OpenAI endpoints: admit a request, have its body prepared, start what generates the answer.

Where bodies are prepared is decided by rtp_llm.server.offload.preprocessor.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from rtp_llm.server.endpoint.endpoint_base import EndpointBase
from rtp_llm.server.endpoint.http_answer import (
    AnswerWriter,
    StreamedAnswer,
    StreamWriter,
    WholeAnswer,
)
from rtp_llm.server.protocols.openai.chat_answers import ChatAnswer, ChatStream
from rtp_llm.server.protocols.openai.chat_batch import CHAT_BATCH
from rtp_llm.server.protocols.openai.chat_request import CHAT
from rtp_llm.server.protocols.openai.completion_answers import CompletionAnswer, CompletionStream
from rtp_llm.server.protocols.openai.generate_request import (
    RENDER_CHAT,
    RENDER_COMPLETION,
    RenderOptions,
    rendered_body,
)
from rtp_llm.server.protocols.openai.invocation import INVOCATION
from rtp_llm.server.protocols.openai.tokenization import DETOKENIZE, TOKENIZE
from rtp_llm.server.turn.body_kind import BodyKind
from rtp_llm.server.turn.completion import COMPLETION
from rtp_llm.server.turn.prepared import PreparedChat, PreparedCompletion, PreparedJobs
from rtp_llm.server.types.jobs import ChatResponseOptions


class Endpoints(EndpointBase):
    """Handlers of one server; each returns a response or raises ApiError."""

    async def chat(self, http: Request) -> Response:
        """POST /v1/chat/completions."""
        return await self._generated(http, CHAT)

    async def chat_batch(self, http: Request) -> Response:
        """POST /v1/chat/completions/batch."""
        return await self._generated(http, CHAT_BATCH)

    async def completions(self, http: Request) -> Response:
        """POST /v1/completions."""
        return await self._generated(http, COMPLETION)

    async def invocations(self, http: Request) -> Response:
        """POST /invocations: a chat or a completion, as Amazon SageMaker asks for them."""
        return await self._generated(http, INVOCATION)

    async def _generated(
        self, http: Request, kind: BodyKind[PreparedChat | PreparedCompletion]
    ) -> Response:
        self._state.check_admission()
        body = await self._read(http)
        request = await self._state.preprocessing.run(kind, body, self._served_model(http))
        generation, headers = self._generation(request.jobs), self._ignored.headers(request.ignored)
        tokenizer, prompts = self._state.tokenizer, [job.prompt_ids for job in request.jobs]
        response_options = request.response_options
        if request.stream:
            stream: StreamWriter
            if isinstance(response_options, ChatResponseOptions):
                stream = ChatStream(response_options, tokenizer, prompts[0], generation.usage)
            else:
                stream = CompletionStream(response_options, tokenizer, prompts, generation.usage)
            return StreamedAnswer(self._state, generation, stream, headers)
        writer: AnswerWriter
        if isinstance(response_options, ChatResponseOptions):
            writer = ChatAnswer(response_options, tokenizer, prompts)
        else:
            writer = CompletionAnswer(response_options, tokenizer, prompts)
        return WholeAnswer(self._state, generation, writer, headers)

    async def render_chat(self, http: Request) -> Response:
        """POST /v1/chat/completions/render: the prompt's token ids, nothing is generated."""
        return await self._rendered(http, RENDER_CHAT)

    async def render_completion(self, http: Request) -> Response:
        """POST /v1/completions/render: the same of a completion."""
        return await self._rendered(http, RENDER_COMPLETION)

    async def _rendered(
        self, http: Request, kind: BodyKind[PreparedJobs[RenderOptions]]
    ) -> Response:
        body, model = await self._read(http), self._served_model(http)
        return self._answer(rendered_body(await self._state.preprocessing.run(kind, body, model)))

    async def tokenize(self, http: Request) -> Response:
        """POST /tokenize."""
        body = await self._read(http)
        return self._answer(await self._state.preprocessing.run(TOKENIZE, body, self._model(http)))

    async def detokenize(self, http: Request) -> Response:
        """POST /detokenize."""
        body = await self._read(http)
        return self._answer(
            await self._state.preprocessing.run(DETOKENIZE, body, self._model(http))
        )
