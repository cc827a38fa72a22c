# SPDX-License-Identifier: Apache-2.0
"""/openapi.json: what clients may send and what they get, error answers included.

Types come from protocol.py and responses.py; what types cannot say (ranges, refused fields) is
added from the tables that the checks themselves use, and from the served model. What depends on
two fields (min_tokens and max_tokens, prompt and answer) has a 400 that no schema foresees.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import GenericAlias
from typing import Any, get_args

import msgspec
from fastapi import FastAPI

from rtp_llm import sampling_params as params
from rtp_llm.config.refusals import REFUSALS, get_refusal
from rtp_llm.server.llama_cpp.answers import InfillAnswer, InfillChunk
from rtp_llm.server.llama_cpp.protocol import PATH as INFILL
from rtp_llm.server.llama_cpp.protocol import InfillRequest
from rtp_llm.server.ollama.errors import is_of_ollama
from rtp_llm.server.openai import openapi_agents, openapi_ollama, responses
from rtp_llm.server.openai.openapi_chat import (
    describe_batch,
    describe_chat,
    describe_constraints,
    describe_structural_tag,
    messages,
)
from rtp_llm.server.openai.protocol import (
    BatchChatRequest,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from rtp_llm.server.prepare.parse import HARMLESS
from rtp_llm.server.prepare.sampling import MAX_STOP_LENGTH, MAX_STOPS
from rtp_llm.text.stop_regex import MAX_PATTERN_LENGTH, MAX_PATTERNS

Schema = dict[str, Any]
# A struct, a union of several, or a list of one.
Kind = Any
BODIES: Mapping[str, Kind] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/chat/completions/batch": BatchChatRequest,
    "/v1/chat/completions/render": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/completions/render": CompletionRequest,
    "/invocations": ChatRequest | CompletionRequest,
    **openapi_agents.BODIES,
    **openapi_ollama.BODIES,
    INFILL: InfillRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}
_JSON, _EVENTS = "application/json", "text/event-stream"
_ANSWERS: Mapping[str, Kind] = {
    "/v1/chat/completions": responses.ChatAnswerBody,
    "/v1/chat/completions/batch": responses.ChatAnswerBody,
    "/v1/chat/completions/render": responses.GenerateRequest,
    "/v1/completions": responses.CompletionAnswerBody,
    "/v1/completions/render": list[responses.GenerateRequest],
    "/invocations": responses.ChatAnswerBody | responses.CompletionAnswerBody,
    **openapi_agents.ANSWERS,
    **openapi_ollama.ANSWERS,
    INFILL: InfillAnswer,
    "/tokenize": responses.TokenizeAnswer,
    "/detokenize": responses.DetokenizeAnswer,
    "/v1/models": responses.ModelList,
    "/v1/models/{name}": responses.ModelCard,
    "/health": responses.HealthAnswer,
    "/liveness": responses.LivenessAnswer,
    "/load": responses.LoadAnswer,
    "/version": responses.VersionAnswer,
    "/server_info": responses.ServerInfoAnswer,
}
# Of a stream, each `data:` event.
_CHUNKS: Mapping[str, tuple[type[msgspec.Struct], ...]] = {
    "/v1/chat/completions": (responses.ChatChunk, responses.ErrorAnswer),
    "/v1/completions": (responses.CompletionAnswerBody, responses.ErrorAnswer),
    "/invocations": (responses.ChatChunk, responses.CompletionAnswerBody, responses.ErrorAnswer),
    **openapi_agents.CHUNKS,
    INFILL: (InfillChunk, InfillAnswer, responses.ErrorAnswer),
}
_SAID: Mapping[str, str] = {
    "400": "The request is malformed, refused or does not fit; `param` names the field.",
    "401": "The key is missing or wrong.",
    "403": "The Host or Origin of the request is not allowed.",
    "404": "There is no such model, endpoint or stored response.",
    "405": "The endpoint does not take this method.",
    "408": "The request came too slowly.",
    "413": "The body is too long.",
    "415": "The body is not declared as JSON, or in an unknown encoding.",
    "429": "The queue, the background responses or a limit of the key is full; Retry-After.",
    "431": "The headers are too long or too many.",
    "500": "A defect of the server, or a model that computed NaN.",
    "503": "Not now: starting, draining, restarting or overloaded; Retry-After.",
}
_OF_ALL = ("401", "403", "405", "431", "503")
_OF_BODIES = ("400", "404", "408", "413", "415", "429", "500")
_PROBES = ("/health", "/liveness")  # their 503 is an answer of their own

_RANGES: Mapping[str, tuple[float | None, float | None]] = {
    "n": (1, params.MAX_SEQUENCES),
    "max_tokens": (1, None),
    "max_completion_tokens": (1, None),
    "min_tokens": (0, None),
    "temperature": (0, 100),
    "min_p": (0, 1),
    "top_k": (-(2**31 - 1), 2**31 - 1),
    "repetition_penalty": (0.01, 100),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "no_repeat_ngram_size": (0, params.MAX_NGRAM_SIZE),
    "seed": (-(2**63), 2**63 - 1),
    "priority": (-params.MAX_PRIORITY, params.MAX_PRIORITY),
    "truncate_prompt_tokens": (1, None),
}
_LONGEST = {"logprob_token_ids": params.MAX_LOGPROB_TOKEN_IDS}
_EMPTY: list[Any] = [None, False, "", [], {}]
_COMPLETION = ("completion", "request")
_TOKEN_IDS = ("stop_token_ids", "allowed_token_ids", "logprob_token_ids", "tokens")


@dataclass(frozen=True, kw_only=True)
class Served:
    """What the document says of the served model; zeros while it is not known.

    `max_sequences`: of one request; `max_logprobs`, `max_prompt_logprobs`: as the settings;
    `trusts_templates`: requests may bring a chat template; `calls_tools`, `thinks`: the model's
    forms of tool calls and of thinking are known; `reads_documents`: the chat template does.
    """

    names: tuple[str, ...]
    max_model_len: int = 0
    vocab_size: int = 0
    max_sequences: int = 0
    max_logprobs: int = 20
    max_prompt_logprobs: int = 0
    trusts_templates: bool = False
    calls_tools: bool = False
    thinks: bool = False
    reads_documents: bool = False


def describe(app: FastAPI, served: Served) -> Schema:
    """The document of `app`, whose requests are for the model `served`."""
    kinds: set[type[msgspec.Struct]] = {*itertools.chain(*_CHUNKS.values())}
    for kind in (*BODIES.values(), *_ANSWERS.values()):
        kinds.update(_structs_of(kind))
    kinds |= {openapi_agents.DELETED, openapi_agents.ERROR, openapi_ollama.ERROR}
    place = "#/components/schemas/{name}"
    _, components = msgspec.json.schema_components(
        sorted(kinds, key=lambda kind: kind.__name__), ref_template=place
    )
    own = (ChatRequest, BatchChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest)
    for kind in own:
        _bound(components[kind.__name__]["properties"], served)
    _name_served(components, served.names)
    chat, batch, completion = (components[kind.__name__] for kind in own[:3])
    for each, areas in ((chat, ("request",)), (batch, ("request",)), (completion, _COMPLETION)):
        _name_refused(each["properties"], *areas)
        each["properties"]["best_of"] = {"enum": [None, 1], "description": "Or the value of n."}
        describe_constraints(each["properties"])
    describe_structural_tag(components["StructuredOutputs"]["properties"]["structural_tag"])
    for each in (chat, batch):
        describe_chat(each["properties"], calls_tools=served.calls_tools, thinks=served.thinks)
    describe_batch(batch["properties"], served.max_sequences)
    if not served.calls_tools:
        components["TokenizeRequest"]["properties"]["tools"] = {"enum": [None, []]}
    completion["properties"]["prompt"] = _prompts(served.vocab_size)
    for each in _types(completion["properties"]["max_tokens"], "integer"):
        each["minimum"] = 0  # with echo: the prompt alone
    components["Message"] = messages(components["Message"])
    components["TokenizeRequest"] = _either(components["TokenizeRequest"], "prompt", "messages")
    schema = FastAPI.openapi(app)
    schema["components"] = {"schemas": components} | {
        "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}
    }
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            _describe_operation(operation, path, method)
    (name,) = schema["paths"]["/v1/models/{name}"]["get"]["parameters"]
    name["schema"] = {"enum": list(served.names)}
    return schema


def _name_served(components: Schema, names: Sequence[str]) -> None:
    """The names that requests of other protocols may have for the model."""
    bodies: list[type[msgspec.Struct]] = [*openapi_agents.BODIES.values(), InfillRequest]
    for body in bodies:
        components[body.__name__]["properties"]["model"] = {"enum": [*names, None]}
    openapi_ollama.describe_names(components, names)


def _describe_operation(operation: Schema, path: str, method: str) -> None:
    body = BODIES.get(path) if method == "post" else None
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {_JSON: _schema_of(body)}}
    answers = {"200": {"description": "Success.", "content": _success(path, method)}}
    statuses = [*_OF_ALL, *(_OF_BODIES if body is not None else ())]
    if path == "/v1/models/{name}":
        statuses.append("404")
    if parameters := openapi_agents.parameters_of(path, method):
        operation["parameters"] = parameters
        statuses += ["400", "404"]
    if path in ("/tokenizer_info", "/metrics"):
        statuses.append("500")
    for status in sorted(statuses):
        kind = _ANSWERS[path] if path in _PROBES and status == "503" else _error_of(path)
        answers[status] = {"description": _SAID[status], "content": {_JSON: _schema_of(kind)}}
    operation["responses"] = answers
    operation.pop("operationId", None)
    if path not in _PROBES:
        operation["security"] = [{"key": []}, {}]


def _error_of(path: str) -> type[msgspec.Struct]:
    if is_of_ollama(path):
        return openapi_ollama.ERROR
    return openapi_agents.ERROR if openapi_agents.is_of_messages(path) else responses.ErrorAnswer


def _success(path: str, method: str) -> Schema:
    if method == "delete":
        return {_JSON: _schema_of(openapi_agents.DELETED)}
    if path == "/metrics":
        return {"text/plain": {"schema": {"type": "string"}}}
    if path not in _ANSWERS:
        return {_JSON: {"schema": {"type": "object"}}}
    content = {_JSON: _schema_of(_ANSWERS[path])}
    if path in openapi_ollama.STREAMED:
        content[openapi_ollama.LINES] = {"schema": {"type": "string"}}
    if path in _CHUNKS:
        content[_EVENTS] = {"schema": _event(_CHUNKS[path])}
    return content


def _event(chunks: tuple[type[msgspec.Struct], ...]) -> Schema:
    """One event of a stream; what fails in the middle is an event, too."""
    kinds = [_schema_of(kind)["schema"] for kind in chunks]
    said = {"type": "string", "contentMediaType": _JSON, "contentSchema": {"anyOf": kinds}}
    data = {"anyOf": [{"const": "[DONE]"}, said]}
    return {"type": "object", "required": ["data"], "properties": {"data": data}}


def _schema_of(kind: Kind) -> Schema:
    places = [{"$ref": f"#/components/schemas/{each.__name__}"} for each in _structs_of(kind)]
    if isinstance(kind, GenericAlias):  # a list
        return {"schema": {"type": "array", "items": places[0]}}
    return {"schema": places[0] if len(places) == 1 else {"anyOf": places}}


def _structs_of(kind: Kind) -> tuple[type[msgspec.Struct], ...]:
    return get_args(kind) or (kind,)


def _bound(properties: Schema, served: Served) -> None:
    """Ranges and lengths that the checks of requests have."""
    for name, (low, high) in {**_RANGES, **_ranges_of(served)}.items():
        for each in _types(properties.get(name), "integer", "number"):
            if low is not None:
                each["minimum"] = low
            if high is not None:
                each["maximum"] = high
    if not served.trusts_templates and "chat_template" in properties:
        properties["chat_template"] = _nothing("--trust-request-chat-template allows it.")
    if not served.reads_documents and "documents" in properties:
        said = get_refusal("request", "documents").reason
        properties["documents"] = {"enum": [None, []], "description": said}
    if "truncate_prompt_tokens" in properties:
        properties["truncate_prompt_tokens"]["anyOf"].insert(0, {"const": -1})
    if "model" in properties:
        properties["model"] = {"enum": [*served.names, None]}
    for name in ("top_p", "typical_p"):
        for each in _types(properties.get(name), "number"):
            each |= {"exclusiveMinimum": 0, "maximum": 1}
    _bound_lists(properties, served)


def _ranges_of(served: Served) -> Mapping[str, tuple[float | None, float | None]]:
    """Those that depend on the model."""
    ranges: dict[str, tuple[float | None, float | None]] = {}
    if served.max_model_len:
        answer = served.max_model_len - 1  # a prompt has a token at least
        ranges |= {"max_tokens": (1, answer), "max_completion_tokens": (1, answer)}
        ranges["min_tokens"] = (0, answer)
        ranges["truncate_prompt_tokens"] = (1, served.max_model_len)
    for name, most in (
        ("prompt_logprobs", served.max_prompt_logprobs),
        ("top_logprobs", served.max_logprobs),
        ("logprobs", served.max_logprobs),
    ):
        whole = most == -1 or 0 < served.vocab_size <= most
        ranges[name] = (-1, served.vocab_size or None) if whole else (0, most)
    if served.max_sequences:
        ranges["n"] = (1, min(params.MAX_SEQUENCES, served.max_sequences))
    return ranges


def _bound_lists(properties: Schema, served: Served) -> None:
    for name in _TOKEN_IDS:
        for each in _types(properties.get(name), "array"):
            each["items"] = _token_id(served.vocab_size)
            if name in _LONGEST:
                each["maxItems"] = _LONGEST[name]
            if name == "allowed_token_ids":
                each["minItems"] = 1
    for each in _types(properties.get("logit_bias"), "object"):
        each["propertyNames"] = {"pattern": "^(0|[1-9][0-9]{0,9})$"}
        each["maxProperties"] = params.MAX_LOGIT_BIAS
        each["additionalProperties"] = {"type": "number", "minimum": -100, "maximum": 100}
    for each in _types(properties.get("messages"), "array"):
        each["minItems"] = 1
    text = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_LENGTH}
    for name, most in (("stop", MAX_STOPS), ("bad_words", params.MAX_BAD_WORDS // 2)):
        for each in _types(properties.get(name), "array"):
            each |= {"items": text, "maxItems": most}
    for each in _types(properties.get("stop"), "string"):
        each |= text
    pattern = text | {"format": "regex", "maxLength": MAX_PATTERN_LENGTH}
    for each in _types(properties.get("stop_regex"), "array"):
        each |= {"items": pattern, "maxItems": MAX_PATTERNS}
    for each in _types(properties.get("stop_regex"), "string"):
        each |= pattern


def _name_refused(properties: Schema, *areas: str) -> None:
    """Fields that are known and refused: the values that ask for nothing."""
    for refusal in sorted(REFUSALS, key=lambda each: each.area):
        if refusal.area in areas and "." not in refusal.name and refusal.name not in properties:
            harmless = [*_EMPTY, *HARMLESS.get(refusal.name, ())]
            properties[refusal.name] = {"enum": harmless, "description": refusal.reason}


def _prompts(vocab_size: int) -> Schema:
    """A text, texts, token ids, or lists of token ids."""
    ids = {"type": "array", "items": _token_id(vocab_size), "minItems": 1}
    text = {"type": "string"}
    texts = {"type": "array", "items": text, "minItems": 1}
    return {"anyOf": [text, texts, ids, {"type": "array", "items": ids, "minItems": 1}]}


def _token_id(vocab_size: int) -> Schema:
    return {"type": "integer", "minimum": 0} | ({"maximum": vocab_size - 1} if vocab_size else {})


def _nothing(otherwise: str) -> Schema:
    return {"enum": [None, ""], "description": otherwise}


def _either(schema: Schema, *names: str) -> Schema:
    """One of the fields `names` has to be there; the others are null."""
    kinds = []
    for name in names:
        properties = dict(schema["properties"])
        (properties[name],) = (
            each for each in properties[name]["anyOf"] if each.get("type") != "null"
        )
        properties |= {other: {"type": "null"} for other in names if other != name}
        kinds.append({"type": "object", "properties": properties, "required": [name]})
    return {"title": schema["title"], "description": schema["description"], "anyOf": kinds}


def _types(schema: Schema | None, *names: str) -> Iterable[Schema]:
    """The alternatives of a property that have one of these types."""
    for each in (schema or {}).get("anyOf", [schema] if schema else []):
        if each.get("type") in names:
            yield each
