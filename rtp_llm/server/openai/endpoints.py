"""The OpenAI endpoints: admit a request, have its body prepared, start what generates the answer.

What a body asks for is worked out by prepare.py, where preparation.py decides.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from rtp_llm.server.endpoint_base import EndpointBase
from rtp_llm.server.openai.answer import StreamedAnswer, WholeAnswer
from rtp_llm.server.openai.chat import ChatAnswer, ChatStream
from rtp_llm.server.openai.completions import CompletionAnswer, CompletionStream


class Endpoints(EndpointBase):
    """Handlers of one server; each returns a response or raises ApiError."""

    async def chat(self, http: Request) -> Response:
        """POST /v1/chat/completions."""
        self._state.check_admission()
        body = await self._read(http)
        request = await self._state.preparation.run("chat", body, self._served_model(http))
        generation, form = self._generation(request.jobs), request.form
        tokenizer, ids = self._state.tokenizer, request.jobs[0].prompt_ids
        headers = self._ignored.headers(request.ignored)
        if not request.stream:
            writer = ChatAnswer(form, tokenizer, ids)
            return WholeAnswer(self._state, generation, writer, headers)
        stream = ChatStream(form, tokenizer, ids, generation.usage)
        return StreamedAnswer(self._state, generation, stream, headers)

    async def completions(self, http: Request) -> Response:
        """POST /v1/completions."""
        self._state.check_admission()
        body = await self._read(http)
        request = await self._state.preparation.run("completion", body, self._served_model(http))
        generation, form = self._generation(request.jobs), request.form
        tokenizer, prompts = self._state.tokenizer, [job.prompt_ids for job in request.jobs]
        headers = self._ignored.headers(request.ignored)
        if not request.stream:
            writer = CompletionAnswer(form, tokenizer, prompts)
            return WholeAnswer(self._state, generation, writer, headers)
        stream = CompletionStream(form, tokenizer, prompts, generation.usage)
        return StreamedAnswer(self._state, generation, stream, headers)

    async def tokenize(self, http: Request) -> Response:
        """POST /tokenize."""
        body = await self._read(http)
        return self._answer(await self._state.preparation.run("tokenize", body, self._model(http)))

    async def detokenize(self, http: Request) -> Response:
        """POST /detokenize."""
        body = await self._read(http)
        return self._answer(
            await self._state.preparation.run("detokenize", body, self._model(http))
        )
