# SPDX-License-Identifier: Apache-2.0
"""POST /api/chat and /api/generate: turn a body into an engine job."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from rtp_llm.server.protocols.ollama.answers import (
    OllamaAnswerMessage,
    OllamaChatAnswer,
    OllamaGenerateAnswer,
)
from rtp_llm.server.protocols.ollama.conversation import Conversation, check_no_images
from rtp_llm.server.protocols.ollama.names import check_name
from rtp_llm.server.protocols.ollama.options import ignored_options, unknown_options
from rtp_llm.server.protocols.ollama.protocol import (
    OllamaBase,
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaOptions,
    OllamaTool,
)
from rtp_llm.server.protocols.ollama.response_options import OllamaResponseOptions
from rtp_llm.server.protocols.ollama.timestamps import now
from rtp_llm.server.turn.body_kind import BodyKind
from rtp_llm.server.turn.chat_turn import ChatPrompt, ChatTurn, ReasoningOptions
from rtp_llm.server.turn.completion import completion_jobs
from rtp_llm.server.turn.constraint import json_object, json_schema
from rtp_llm.server.turn.fill_in_middle import middle_prompt, suffix_tokens, with_ends
from rtp_llm.server.turn.function_tools import declared_functions
from rtp_llm.server.turn.grammar_source import GrammarSource, encoded
from rtp_llm.server.turn.llama_sampling import in_their_names, sampling_of
from rtp_llm.server.turn.parse import parse, plain_names
from rtp_llm.server.turn.prepare_turn import prepare_turn
from rtp_llm.server.turn.prepared import PreparedBody, PreparedJobs
from rtp_llm.server.turn.prompts import encode_prompt
from rtp_llm.server.turn.sampling import Lengths
from rtp_llm.server.turn.served_model import ServedModel
from rtp_llm.server.types.bounds import MAX_TOOLS, check_count
from rtp_llm.server.types.errors import bad_request
from rtp_llm.server.types.jobs import AnswerOptions, Job
from rtp_llm.server.types.openai_bodies import (
    CompletionRequest,
    FunctionDefinition,
    SamplingFields,
)
from rtp_llm.text.conversation import Message, Tool

MAX_TOP_LOGPROBS = 20
# The prefix of option names in errors.
PLACE = "options."

T = TypeVar("T", bound=OllamaBase)


def prepare_ollama_chat(
    body: bytes, model: ServedModel
) -> PreparedJobs[OllamaResponseOptions] | PreparedBody:
    """Prepare the body of POST /api/chat; raises ApiError."""
    request, ignored = _parse(body, OllamaChatRequest, model)
    response_options = _response_options(request, model, chat=True)
    if not request.messages:
        loaded = OllamaChatAnswer(
            model=response_options.model,
            created_at=now(),
            message=OllamaAnswerMessage(),
            done=True,
            done_reason="load",
        )
        return PreparedBody(msgspec.json.encode(loaded), ignored)
    messages = Conversation().read(request.messages)
    last = messages[-1] if messages else None
    if last is None:
        raise bad_request("messages: nobody says anything.", "messages", "invalid_value")
    prompt = ChatPrompt(
        messages=messages,
        tools=_tools(request.tools or ()),
        reasoning=_reasoning(request, model),
        # Continue an answer that the client has begun.
        continue_final_message=last.role == "assistant" and bool(last.content),
    )
    job = _turn_job(request, prompt, "messages", model)
    return PreparedJobs([job], request.stream is not False, response_options, ignored)


OLLAMA_CHAT = BodyKind(
    "ollama_chat", prepare_ollama_chat, response_options=(OllamaResponseOptions,)
)


def prepare_ollama_generate(
    body: bytes, model: ServedModel
) -> PreparedJobs[OllamaResponseOptions] | PreparedBody:
    """Prepare the body of POST /api/generate; raises ApiError."""
    request, ignored = _parse(body, OllamaGenerateRequest, model)
    _check_generate(request)
    response_options = _response_options(request, model, chat=False)
    if not request.prompt and not request.suffix:
        loaded = OllamaGenerateAnswer(
            model=response_options.model, created_at=now(), done=True, done_reason="load"
        )
        return PreparedBody(msgspec.json.encode(loaded), ignored)
    if request.raw or request.suffix or not (model.tokenizer.has_chat_template or request.system):
        job = _plain_job(request, model)
    else:
        said: list[Message] = [Message("system", request.system)] if request.system else []
        prompt = ChatPrompt(
            messages=(*said, Message("user", request.prompt)), reasoning=_reasoning(request, model)
        )
        job = _turn_job(request, prompt, "prompt", model)
    return PreparedJobs([job], request.stream is not False, response_options, ignored)


OLLAMA_GENERATE = BodyKind(
    "ollama_generate", prepare_ollama_generate, response_options=(OllamaResponseOptions,)
)


# -- parts -------------------------------------------------------------------------------------


def _parse(body: bytes, kind: type[T], model: ServedModel) -> tuple[T, tuple[str, ...]]:
    """Parse the request; also returns its unknown fields and options."""
    request, ignored = parse(body, kind, model.strict_fields)
    check_name(request.model, model)
    options = unknown_options(body)
    if options and model.strict_fields:
        raise bad_request(
            f"Unknown field {options[0]!r}; it would have no effect (--strict-fields).",
            options[0],
            "unknown_field",
        )
    if request.options is not None:
        options += ignored_options(request.options, model)
    return request, (*ignored, *plain_names(options))


def _response_options(
    request: OllamaBase, model: ServedModel, *, chat: bool
) -> OllamaResponseOptions:
    return OllamaResponseOptions(
        chat=chat,
        model=check_name(request.model, model),
        logprobs=bool(request.logprobs),
        show_thinking=request.think is not False,
    )


def _check_generate(request: OllamaGenerateRequest) -> None:
    check_no_images(request.images, "images")
    if request.template:
        raise bad_request(
            "template: templates of requests are not rendered. Send the whole prompt with "
            "raw=true, or start the server with --chat-template.",
            "template",
            "unsupported",
        )
    if request.context:
        raise bad_request(
            "context: it is not given out and not taken. Send the conversation to /api/chat.",
            "context",
            "unsupported",
        )
    for name, given in (("raw", request.raw), ("suffix", request.suffix)):
        if given and request.system:
            raise bad_request(
                f"{name}: a system message needs the chat template, which is not rendered with "
                f"{name}.",
                name,
                "invalid_value",
            )


def _tools(tools: list[OllamaTool] | tuple[()]) -> tuple[Tool, ...]:
    check_count("tools", len(tools), MAX_TOOLS, "tools")
    functions = [
        FunctionDefinition(
            name=tool.function.name,
            description=tool.function.description,
            parameters=tool.function.parameters,
        )
        for tool in tools
    ]
    return declared_functions(functions, "tools", ".function")


def _reasoning(request: OllamaBase, model: ServedModel) -> ReasoningOptions:
    think = request.think
    if think and model.reasoning_parser is None:
        raise bad_request(
            f"think: {model.name!r} does not support thinking. Leave the field out.",
            "think",
            "unsupported",
        )
    return ReasoningOptions(
        enabled=None if think is None else bool(think),
        effort=think if isinstance(think, str) else None,
        optional=True,
    )


def _turn_job(request: OllamaBase, prompt: ChatPrompt, place: str, model: ServedModel) -> Job:
    options = request.options or OllamaOptions()
    turn = ChatTurn(
        prompt=prompt,
        sampling=SamplingFields(stream=request.stream is not False, **sampling_of(options, PLACE)),
        lengths=_lengths(options, place, model),
        grammar=_grammar(request),
        options=_answer_options(request),
    )
    with in_their_names(PLACE):
        return prepare_turn(turn, model)


def _plain_job(request: OllamaGenerateRequest, model: ServedModel) -> Job:
    """The job of a raw prompt, without a template."""
    options = request.options or OllamaOptions()
    lengths = _lengths(options, "prompt", model)
    prompt = request.prompt or ""
    requested = CompletionRequest(
        prompt=prompt, suffix=request.suffix, **sampling_of(options, PLACE)
    )
    tokens = suffix_tokens(requested, model)
    requested = with_ends(requested, tokens)
    if tokens is not None:
        ids = middle_prompt(prompt, requested, tokens, model, lengths)
    else:
        ids, _ = encode_prompt(prompt, requested, model, lengths, True)
    requested.max_tokens = lengths.resolve(len(ids), model.limits)
    grammar, answer_options = encoded(_grammar(request)), _answer_options(request)
    with in_their_names(PLACE):
        (job,) = completion_jobs(
            requested, model, [(None, ids)], answer_options, grammar_source=grammar
        )
    return job


def _lengths(options: OllamaOptions, place: str, model: ServedModel) -> Lengths:
    requested = options.num_predict
    requested = requested if requested is not None and requested > 0 else None
    default = None if options.num_predict is not None else model.defaults.max_tokens
    return Lengths(place, "options.num_predict", requested, default, clamp=True)


def _answer_options(request: OllamaBase) -> AnswerOptions:
    top = request.top_logprobs or 0
    if not 0 <= top <= MAX_TOP_LOGPROBS:
        raise bad_request(
            f"top_logprobs: {top} must be between 0 and {MAX_TOP_LOGPROBS}.",
            "top_logprobs",
            "invalid_value",
        )
    if top and not request.logprobs:
        text = "top_logprobs: needs logprobs to be true."
        raise bad_request(text, "top_logprobs", "invalid_value")
    return AnswerOptions(top_logprobs=top if request.logprobs else None)


def _grammar(request: OllamaBase) -> GrammarSource | None:
    """The grammar of the answer; as in Ollama, unenforceable parts of a schema are ignored."""
    if not request.format:
        return None
    if isinstance(request.format, str):
        return json_object("format")
    return json_schema(request.format, False, "format")
