"""The OpenAI endpoints: from a request's body to an answer that can run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rtp_llm.config.refusals import get_refusal
from rtp_llm.sampling_params import SamplingParams
from rtp_llm.server.answer import StreamedAnswer, WholeAnswer
from rtp_llm.server.asgi import read_body
from rtp_llm.server.chat import ChatAnswer, ChatStream
from rtp_llm.server.completions import CompletionAnswer, CompletionForm, CompletionStream, Echo
from rtp_llm.server.errors import ApiError, bad_request, unknown_model
from rtp_llm.server.generation import Generation, Job
from rtp_llm.server.parse import parse, template_messages, template_variables
from rtp_llm.server.protocol import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    Message,
    SamplingFields,
    TokenizeRequest,
)
from rtp_llm.server.sampling import (
    Limits,
    chat_lengths,
    chat_logprobs,
    check_token_ids,
    completion_lengths,
    completion_logprobs,
    sampling_params,
)
from rtp_llm.server.state import ServerState
from rtp_llm.text.chat_template import ChatTemplateError
from rtp_llm.text.sequence import SequenceText
from rtp_llm.text.tokenizer import Tokenizer

# Texts of more characters, and more tokens, are converted in a thread: streams must not wait.
LONG_TEXT = 4096
# A prompt of more characters per token of the context is looked at from its beginning first.
MANY_CHARACTERS = 16
# Cutting a text changes the tokens at the border only.
BORDER_TOKENS = 64

T = TypeVar("T", ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest)


class Endpoints:
    """Handlers of one server; each returns a response or raises ApiError."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def chat(self, http: Request) -> Response:
        """POST /v1/chat/completions."""
        request = await self._admit(http, ChatRequest)
        tokenizer, limits = self._state.tokenizer, self._state.limits
        self._check_size(1, request)
        logprobs = chat_logprobs(request)
        lengths = chat_lengths(request, self._state.defaults)
        ids = await self._chat_ids(request)
        max_tokens = lengths.resolve(len(ids), limits)
        params = sampling_params(
            request, self._state.defaults, limits, max_tokens=max_tokens, logprobs=logprobs
        )
        generation = self._generation([self._job(request, ids, params)])
        name = self._state.settings.model_name
        if not request.stream:
            writer = ChatAnswer(name, tokenizer, params.n, logprobs=logprobs is not None)
            return WholeAnswer(self._state, generation, writer)
        stream = ChatStream(
            name,
            tokenizer,
            logprobs=logprobs is not None,
            include_usage=_wants_usage(request),
        )
        return StreamedAnswer(self._state, generation, stream)

    async def completions(self, http: Request) -> Response:
        """POST /v1/completions."""
        request = await self._admit(http, CompletionRequest)
        tokenizer = self._state.tokenizer
        if request.best_of not in (None, request.n or 1):
            raise _refused_best_of()
        prompts = await self._prompts(request)
        drop = request.max_tokens == 0 and bool(request.echo)
        jobs = self._completion_jobs(request, prompts, drop)
        choices = jobs[0].params.n
        form = CompletionForm(
            model=self._state.settings.model_name,
            choices_per_prompt=choices,
            num_choices=choices * len(jobs),
            logprobs=request.logprobs is not None,
            echoes=[_echo(tokenizer, *prompt) for prompt in prompts] if request.echo else None,
            drop_answer=drop,
        )
        generation = self._generation(jobs)
        if not request.stream:
            return WholeAnswer(self._state, generation, CompletionAnswer(form, tokenizer))
        stream = CompletionStream(form, tokenizer, include_usage=_wants_usage(request))
        return StreamedAnswer(self._state, generation, stream)

    async def tokenize(self, http: Request) -> Response:
        """POST /tokenize."""
        request = await self._parse(http, TokenizeRequest)
        tokenizer = self._state.tokenizer
        if (request.prompt is None) == (request.messages is None):
            raise bad_request("Give one of prompt and messages.", param="prompt")
        if request.messages is not None:
            text = self._render(
                request.messages, request.add_generation_prompt, request.chat_template_kwargs
            )
            ids = await _encode(tokenizer, text, bool(request.add_special_tokens))
        else:
            add = request.add_special_tokens is not False
            ids = await _encode(tokenizer, request.prompt or "", add)
        ready = self._state.engine.ready
        content: dict[str, Any] = {
            "count": len(ids),
            "max_model_len": ready.max_model_len if ready else None,
            "tokens": ids,
            "token_strs": tokenizer.tokens(ids) if request.return_token_strs else None,
        }
        return json_response(content)

    async def detokenize(self, http: Request) -> Response:
        """POST /detokenize."""
        request = await self._parse(http, DetokenizeRequest)
        tokenizer = self._state.tokenizer
        ready = self._state.engine.ready
        size = max(tokenizer.vocab_size, ready.vocab_size if ready else 0)
        check_token_ids("tokens", request.tokens, Limits(0, size))
        skip = bool(request.skip_special_tokens)
        if len(request.tokens) < LONG_TEXT:
            text = tokenizer.decode(request.tokens, skip)
        else:
            text = await asyncio.to_thread(tokenizer.decode, request.tokens, skip)
        return json_response({"prompt": text})

    # -- parts ---------------------------------------------------------------------------------

    async def _admit(self, http: Request, kind: type[T]) -> T:
        self._state.check_admission()
        return await self._parse(http, kind)

    async def _parse(self, http: Request, kind: type[T]) -> T:
        body = await read_body(http, self._state.settings.max_request_bytes)
        request = parse(body, kind)
        served = self._state.settings.model_name
        if request.model is not None and request.model != served:
            raise unknown_model(request.model, served)
        return request

    def _generation(self, jobs: Sequence[Job]) -> Generation:
        self._state.check_admission()
        return Generation(self._state.engine, self._state.tokenizer, self._state.metrics, jobs)

    def _check_size(self, num_prompts: int, request: SamplingFields) -> None:
        """A request that no empty server could take is a bad one, not one to try again.

        Looked at before anything is tokenised, which takes long for very many prompts.
        """
        ready, n = self._state.engine.ready, request.n or 1
        if ready is not None and num_prompts * n > ready.max_running + ready.max_queued:
            raise bad_request(
                f"{num_prompts} prompts with n={n} are {num_prompts * n} sequences; this server "
                f"holds at most {ready.max_running + ready.max_queued}.",
                param="n" if num_prompts == 1 else "prompt",
                code="invalid_value",
            )

    def _render(
        self,
        messages: list[Message],
        add_generation_prompt: bool | None,
        variables: dict[str, Any] | None,
    ) -> str:
        try:
            return self._state.tokenizer.apply_chat_template(
                template_messages(messages),
                add_generation_prompt is not False,
                **template_variables(variables),
            )
        except ChatTemplateError as error:
            text = str(error)
            raise bad_request(
                text[:1].upper() + text[1:] + ".", param="messages", code="chat_template"
            ) from error

    async def _chat_ids(self, request: ChatRequest) -> list[int]:
        text = self._render(
            request.messages, request.add_generation_prompt, request.chat_template_kwargs
        )
        tokenizer = self._state.tokenizer
        await _check_length(tokenizer, text, self._state.limits.max_model_len, "messages")
        ids = await _encode(tokenizer, text, bool(request.add_special_tokens))
        if not ids:
            raise bad_request("The messages render to an empty prompt.", param="messages")
        return ids

    async def _prompts(self, request: CompletionRequest) -> list[tuple[str | None, list[int]]]:
        """(text if one was given, ids) of each prompt."""
        given = request.prompt
        prompts: Sequence[Any] = [given] if isinstance(given, str) else given
        kinds = set(map(type, prompts))
        if kinds == {int}:
            prompts, kinds = [prompts], {list}
        if len(kinds) != 1 or not kinds <= {str, list}:
            raise bad_request(
                "prompt: must be a text, a list of texts, a list of token ids or a list of lists "
                "of token ids, and not empty.",
                param="prompt",
                code="invalid_type",
            )
        self._check_size(len(prompts), request)
        return [await self._prompt(item, request) for item in prompts]

    async def _prompt(
        self, item: str | list[int], request: CompletionRequest
    ) -> tuple[str | None, list[int]]:
        if isinstance(item, list):
            check_token_ids("prompt", item, self._state.limits)
            text, ids = None, item
        else:
            tokenizer = self._state.tokenizer
            await _check_length(tokenizer, item, self._state.limits.max_model_len, "prompt")
            add = request.add_special_tokens is not False
            text, ids = item, await _encode(tokenizer, item, add)
        if not ids:
            raise bad_request("prompt: must not be empty.", param="prompt", code="invalid_value")
        return text, ids

    def _completion_jobs(
        self, request: CompletionRequest, prompts: list[tuple[str | None, list[int]]], drop: bool
    ) -> list[Job]:
        limits = self._state.limits
        logprobs = completion_logprobs(request)
        lengths = completion_lengths(request, self._state.defaults)
        jobs: list[Job] = []
        for _, ids in prompts:
            if drop:
                # Only the prompt's log-probabilities are wanted; the engine draws one token.
                lengths.resolve(len(ids) + 1, limits)
            params = sampling_params(
                request,
                self._state.defaults,
                limits,
                max_tokens=1 if drop else lengths.resolve(len(ids), limits),
                logprobs=None if drop else logprobs,
                prompt_logprobs=logprobs if request.echo else None,
            )
            first = len(jobs) * params.n
            where = {"first_choice": first, "continues_prompt": True, "prompt_only": drop}
            jobs.append(self._job(request, ids, params, **where))
        return jobs

    def _job(
        self, request: SamplingFields, ids: list[int], params: SamplingParams, **fields: Any
    ) -> Job:
        return Job(
            prompt_ids=ids,
            params=params,
            hidden=self._state.limits.eos_token_ids,
            skip_special_tokens=request.skip_special_tokens is not False,
            include_stop=bool(request.include_stop_str_in_output),
            cache_salt=request.cache_salt or "",
            **fields,
        )


def _echo(tokenizer: Tokenizer, text: str | None, ids: list[int]) -> Echo:
    sequence = SequenceText(tokenizer.detokenizer(), track_offsets=True)
    decoded = sequence.feed(ids, finished=True)
    return Echo(decoded if text is None else text, ids, sequence.offsets or [])


def _wants_usage(request: SamplingFields) -> bool:
    return bool(request.stream_options and request.stream_options.include_usage)


def _refused_best_of() -> ApiError:
    return bad_request(get_refusal("request", "best_of").message, "best_of", "unsupported")


async def _encode(tokenizer: Tokenizer, text: str, add_special_tokens: bool) -> list[int]:
    if len(text) < LONG_TEXT:
        return tokenizer.encode(text, add_special_tokens)
    return await asyncio.to_thread(tokenizer.encode, text, add_special_tokens)


async def _check_length(tokenizer: Tokenizer, text: str, limit: int, param: str) -> None:
    """Refuse a text that is far too long by its beginning, before megabytes are tokenised.

    A token rarely has so many characters; where it has, the whole text is tokenised after all.
    """
    size = MANY_CHARACTERS * limit
    if len(text) <= size:
        return
    count = len(await _encode(tokenizer, text[:size], False))
    if count > limit + BORDER_TOKENS:
        raise bad_request(
            f"This model's context is {limit} tokens; the first {size} of {len(text)} characters "
            f"in the prompt alone make {count}.",
            param=param,
            code="context_length_exceeded",
        )


def json_response(content: Any, status: int = 200) -> Response:
    """A small JSON response."""
    body = msgspec.json.encode(content)
    return Response(body, status, media_type="application/json")
