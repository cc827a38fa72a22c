# SPDX-License-Identifier: Apache-2.0
"""/openapi.json: requests and responses, including errors.

Types come from protocol.py and responses.py; what types cannot express (ranges, refused fields) is
added from the tables that the checks use, and from the served model. Conditions on two fields
(min_tokens and max_tokens, prompt and answer) lead to 400 errors that the schema does not describe.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from types import GenericAlias
from typing import Any, get_args

import msgspec
from fastapi import FastAPI

from rtp_llm.config.refusals import REFUSALS
from rtp_llm.server.openapi import openapi_agents, openapi_embeddings, openapi_ollama
from rtp_llm.server.openapi.openapi_bounds import (
    Served,
    bound,
    max_choices,
    token_id,
    types_of,
)
from rtp_llm.server.openapi.openapi_chat import (
    describe_batch,
    describe_beams,
    describe_chat,
    describe_constraints,
    describe_structural_tag,
    messages,
    without_tools,
)
from rtp_llm.server.protocols.llama_cpp.answers import InfillAnswer, InfillChunk
from rtp_llm.server.protocols.llama_cpp.protocol import PATH as INFILL
from rtp_llm.server.protocols.llama_cpp.protocol import InfillRequest
from rtp_llm.server.turn.parse import HARMLESS
from rtp_llm.server.types import openai_answers as responses
from rtp_llm.server.types.ollama_error import is_of_ollama
from rtp_llm.server.types.openai_bodies import (
    BatchChatRequest,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)

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
    **openapi_embeddings.BODIES,
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
    **openapi_embeddings.ANSWERS,
    "/tokenize": responses.TokenizeAnswer,
    "/detokenize": responses.DetokenizeAnswer,
    "/v1/models": responses.ModelList,
    "/v1/models/{name}": responses.ModelCard,
    "/health": responses.HealthAnswer,
    "/liveness": responses.LivenessAnswer,
    "/load": responses.LoadAnswer,
    "/version": responses.VersionAnswer,
    "/server_info": responses.ServerInfoAnswer,
    "/start_profile": responses.ProfileStarted,
    "/stop_profile": responses.ProfileStopped,
}
# The schema of each `data:` event of a stream.
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
    "409": "The profiler runs already, or does not run.",
    "413": "The body is too long.",
    "415": "The body is not declared as JSON, or in an unknown encoding.",
    "429": "The queue, the background responses or a limit of the key is full; Retry-After.",
    "431": "The headers are too long or too many.",
    "500": "A defect of the server, or a model that computed NaN.",
    "503": "Not now: starting, draining, restarting or overloaded; Retry-After.",
}
_OF_ALL = ("401", "403", "405", "431", "503")
_OF_BODIES = ("400", "404", "408", "413", "415", "429", "500")
_PROBES = ("/health", "/liveness")  # they have their own 503 response

_EMPTY: list[Any] = [None, False, "", [], {}]
_COMPLETION = ("completion", "request")


def describe(app: FastAPI, served: Served) -> Schema:
    """The OpenAPI document of `app` for the model `served`."""
    kinds: set[type[msgspec.Struct]] = {*itertools.chain(*_CHUNKS.values())}
    for kind in (*BODIES.values(), *_ANSWERS.values()):
        kinds.update(_structs_of(kind))
    kinds |= {openapi_agents.DELETED, openapi_agents.ERROR, openapi_ollama.ERROR}
    kinds |= openapi_embeddings.KINDS
    place = "#/components/schemas/{name}"
    _, components = msgspec.json.schema_components(
        sorted(kinds, key=lambda kind: kind.__name__), ref_template=place
    )
    _describe_bodies(components, served)
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


def _describe_bodies(components: Schema, served: Served) -> None:
    """What their types cannot say."""
    documents = components["TokenizeRequest"]["properties"]["documents"]
    own = (ChatRequest, BatchChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest)
    kinds: list[type[Any]] = [*own, *openapi_agents.BODIES.values()]
    for kind in kinds:
        bound(components[kind.__name__]["properties"], served)
    openapi_agents.describe_lengths(components)
    openapi_embeddings.describe_bodies(components, served)
    _name_served(components, served.names)
    chat, batch, completion = (components[kind.__name__] for kind in own[:3])
    for each, areas in ((chat, ("request",)), (batch, ("request",)), (completion, _COMPLETION)):
        _name_refused(each["properties"], *areas)
        describe_beams(each["properties"], max_choices(served))
        describe_constraints(each["properties"])
    describe_structural_tag(components["StructuredOutputs"]["properties"]["structural_tag"])
    for each in (chat, batch):
        describe_chat(
            each["properties"],
            calls_tools=served.calls_tools,
            thinks=served.thinks,
            variables=served.variables,
        )
    describe_batch(batch["properties"], served.max_sequences)
    completion["properties"]["prompt"] = _prompts(served.vocab_size)
    for each in types_of(completion["properties"]["max_tokens"], "integer"):
        each["minimum"] = 0  # with echo, only the prompt
    called = components["MessageToolCall"]["properties"]["function"]
    components["Message"] = messages(components["Message"], called)
    components["TokenizeRequest"] = _either(components["TokenizeRequest"], "prompt", "messages")
    prompt, conversation = (each["properties"] for each in components["TokenizeRequest"]["anyOf"])
    prompt["documents"] = documents  # of a prompt they are not a part
    if not served.trusts_templates and "tools" not in served.template_variables:
        conversation |= without_tools()


def _name_served(components: Schema, names: Sequence[str]) -> None:
    """Add the model names that requests of other protocols may use."""
    components[InfillRequest.__name__]["properties"]["model"] = {"enum": [*names, None]}
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
    if path in ("/start_profile", "/stop_profile"):
        statuses += ["400", "409"]
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
    if path in openapi_embeddings.SCHEMAS:
        return {_JSON: {"schema": openapi_embeddings.SCHEMAS[path]}}
    if path not in _ANSWERS:
        return {_JSON: {"schema": {"type": "object"}}}
    content = {_JSON: _schema_of(_ANSWERS[path])}
    if path in openapi_ollama.STREAMED:
        content[openapi_ollama.LINES] = {"schema": {"type": "string"}}
    if path in _CHUNKS:
        content[_EVENTS] = {"schema": _event(_CHUNKS[path])}
    return content


def _event(chunks: tuple[type[msgspec.Struct], ...]) -> Schema:
    """The schema of a stream's events, which include errors."""
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


def _name_refused(properties: Schema, *areas: str) -> None:
    """Describe known but unsupported fields: only their no-op values are allowed."""
    for refusal in sorted(REFUSALS, key=lambda each: each.area):
        if refusal.area in areas and "." not in refusal.name and refusal.name not in properties:
            harmless = [*_EMPTY, *HARMLESS.get(refusal.name, ())]
            properties[refusal.name] = {"enum": harmless, "description": refusal.reason}


def _prompts(vocab_size: int) -> Schema:
    """The schema of `prompt`: a text, texts, token ids, or lists of token ids."""
    ids = {"type": "array", "items": token_id(vocab_size), "minItems": 1}
    text = {"type": "string"}
    texts = {"type": "array", "items": text, "minItems": 1}
    return {"anyOf": [text, texts, ids, {"type": "array", "items": ids, "minItems": 1}]}


def _either(schema: Schema, *names: str) -> Schema:
    """Require exactly one of the fields `names`; the others are null."""
    kinds = []
    for name in names:
        properties = dict(schema["properties"])
        (properties[name],) = (
            each for each in properties[name]["anyOf"] if each.get("type") != "null"
        )
        properties |= {other: {"type": "null"} for other in names if other != name}
        kinds.append({"type": "object", "properties": properties, "required": [name]})
    return {"title": schema["title"], "description": schema["description"], "anyOf": kinds}
