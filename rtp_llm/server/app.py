# SPDX-License-Identifier: Apache-2.0
"""The ASGI application: its routes, and errors in OpenAI's shape for everything else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from rtp_llm import __version__
from rtp_llm.config.settings import Settings
from rtp_llm.server.endpoint.pooled_answer import PooledEndpoints
from rtp_llm.server.endpoint.server_state import ServerState
from rtp_llm.server.http.asgi import REQUEST_ID
from rtp_llm.server.http.page import FILES, send_file
from rtp_llm.server.http.request_headers import with_cors
from rtp_llm.server.middleware import CLIENT_CLOSED, RequestMiddleware
from rtp_llm.server.openapi.docs_page import HEADERS, render
from rtp_llm.server.openapi.openapi import BODIES, describe
from rtp_llm.server.openapi.openapi_bounds import Served
from rtp_llm.server.probes import Probes
from rtp_llm.server.profile_endpoints import START, STOP, ProfileEndpoints
from rtp_llm.server.protocols.anthropic.endpoints import MessagesEndpoints
from rtp_llm.server.protocols.embeddings.endpoints import ENDPOINTS
from rtp_llm.server.protocols.llama_cpp.endpoints import LlamaCppEndpoints
from rtp_llm.server.protocols.llama_cpp.protocol import PATH as INFILL
from rtp_llm.server.protocols.ollama.embeddings import OLLAMA_EMBEDDINGS
from rtp_llm.server.protocols.ollama.endpoints import OllamaEndpoints
from rtp_llm.server.protocols.openai.endpoints import Endpoints
from rtp_llm.server.protocols.openai.missing_endpoints import explain_missing, is_known_missing
from rtp_llm.server.protocols.responses.endpoints import ResponsesEndpoints
from rtp_llm.server.types.error_body import error_body
from rtp_llm.server.types.errors import INVALID, ApiError, internal


def build_app(state: ServerState) -> ASGIApp:
    """Build the application that serves `state`, which may be called before the engine is ready."""
    app = _fastapi(state.settings)
    app.add_exception_handler(ApiError, _show_api_error)
    app.add_exception_handler(HTTPException, _show_http_exception)
    app.add_exception_handler(ClientDisconnect, _show_nothing)
    app.add_exception_handler(Exception, _show_internal)
    endpoints, probes = Endpoints(state), Probes(state, app.routes)
    responses, messages = ResponsesEndpoints(state), MessagesEndpoints(state)
    ollama, llama_cpp = OllamaEndpoints(state), LlamaCppEndpoints(state)
    _add_openai(app, endpoints)
    _add_responses(app, responses)
    _add_messages(app, messages)
    _add_ollama(app, ollama)
    app.add_api_route(INFILL, llama_cpp.infill, methods=["POST"], response_model=None)
    pooled = PooledEndpoints(state)
    handlers = {each.path: pooled.handler(each) for each in (*ENDPOINTS, *OLLAMA_EMBEDDINGS)}
    for path, handler in handlers.items():
        app.add_api_route(path, handler, methods=["POST"], response_model=None)
    _add_probes(app, probes, state.settings)
    _add_profiler(app, state)
    app.openapi = lambda: describe(app, _served(state))  # type: ignore[method-assign]
    paths = frozenset(getattr(route, "path", "") for route in app.routes)
    direct = {
        ("POST", "/v1/chat/completions"): _direct(endpoints.chat),
        ("POST", "/v1/chat/completions/batch"): _direct(endpoints.chat_batch),
        ("POST", "/v1/completions"): _direct(endpoints.completions),
        ("POST", "/invocations"): _direct(endpoints.invocations),
        ("POST", "/v1/responses"): _direct(responses.create),
        ("POST", "/v1/messages"): _direct(messages.create),
        ("POST", "/api/chat"): _direct(ollama.chat),
        ("POST", "/api/generate"): _direct(ollama.generate),
        ("POST", INFILL): _direct(llama_cpp.infill),
        **{("POST", path): _direct(handler) for path, handler in handlers.items()},
    }
    return with_cors(
        RequestMiddleware(app, state, paths, direct, frozenset(BODIES)), state.settings
    )


def _fastapi(settings: Settings) -> FastAPI:
    return FastAPI(
        title="RTP-LLM",
        version=__version__,
        openapi_url="/openapi.json" if settings.enable_docs else None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        root_path=settings.root_path,
    )


def _served(state: ServerState) -> Served:
    ready, settings = state.engine.ready, state.settings
    known: dict[str, int] = {}
    if ready is not None:
        known = {"max_model_len": ready.max_model_len, "vocab_size": ready.vocab_size}
        known["max_sequences"] = ready.max_running + ready.max_queued
        known["vector_size"] = ready.vector_size
    syntax = state.syntax_or_none
    return Served(
        calls_tools=syntax is not None and syntax.tool_calls is not None,
        thinks=syntax is not None and syntax.reasoning is not None,
        names=settings.model_names,
        template_variables=state.template_variables,
        max_logprobs=settings.max_logprobs,
        max_prompt_logprobs=settings.max_prompt_logprobs,
        trusts_templates=settings.trust_request_chat_template,
        matryoshka=ready.matryoshka if ready else None,
        prompt_names=tuple(state.prompts.texts),
        **known,
    )


def _add_openai(app: FastAPI, endpoints: Endpoints) -> None:
    for path, handler in (
        ("/v1/chat/completions", endpoints.chat),
        ("/v1/chat/completions/batch", endpoints.chat_batch),
        ("/v1/chat/completions/render", endpoints.render_chat),
        ("/v1/completions", endpoints.completions),
        ("/v1/completions/render", endpoints.render_completion),
        ("/invocations", endpoints.invocations),
        ("/tokenize", endpoints.tokenize),
        ("/detokenize", endpoints.detokenize),
    ):
        app.add_api_route(path, handler, methods=["POST"], response_model=None)


def _add_responses(app: FastAPI, responses: ResponsesEndpoints) -> None:
    add, one = app.add_api_route, "/v1/responses/{response_id}"
    add("/v1/responses", responses.create, methods=["POST"], response_model=None)
    add("/v1/responses/input_tokens", responses.count_input, methods=["POST"], response_model=None)
    add(one, responses.get, methods=["GET"], response_model=None)
    add(one, responses.delete, methods=["DELETE"], response_model=None)
    add(f"{one}/cancel", responses.cancel, methods=["POST"], response_model=None)
    add(f"{one}/input_items", responses.input_items, methods=["GET"], response_model=None)


def _add_messages(app: FastAPI, messages: MessagesEndpoints) -> None:
    add = app.add_api_route
    add("/v1/messages", messages.create, methods=["POST"], response_model=None)
    add("/v1/messages/count_tokens", messages.count_tokens, methods=["POST"], response_model=None)


def _add_ollama(app: FastAPI, ollama: OllamaEndpoints) -> None:
    add = app.add_api_route
    for path, handler in (
        ("chat", ollama.chat),
        ("generate", ollama.generate),
        ("show", ollama.show),
    ):
        add(f"/api/{path}", handler, methods=["POST"], response_model=None)
    add("/api/tags", ollama.tags, methods=["GET"], response_model=None)
    add("/api/ps", ollama.ps, methods=["GET"], response_model=None)
    add("/api/version", ollama.version, methods=["GET"], response_model=None)


def _add_probes(app: FastAPI, probes: Probes, settings: Settings) -> None:
    add = app.add_api_route
    add("/v1/models", probes.models, methods=["GET"], response_model=None)
    add("/v1/models/{name:path}", probes.model, methods=["GET"], response_model=None)
    add("/health", probes.health, methods=["GET"], response_model=None)
    add("/liveness", probes.liveness, methods=["GET"], response_model=None)
    both = ["GET", "POST"]
    add("/ping", probes.health, methods=both, response_model=None, include_in_schema=False)
    add("/load", probes.load, methods=["GET"], response_model=None)
    add("/server_info", probes.server_info, methods=["GET"], response_model=None)
    add("/info", probes.info, methods=["GET"], response_model=None)
    add("/tokenizer_info", probes.tokenizer_info, methods=["GET"], response_model=None)
    add("/metrics", probes.metrics, methods=["GET"], response_model=None)
    add("/version", probes.version, methods=["GET"], response_model=None)
    if settings.enable_docs:
        add("/docs", _docs, methods=["GET"], response_model=None, include_in_schema=False)
    add("/", probes.root, methods=["GET"], response_model=None, include_in_schema=False)
    if settings.page:
        path = FILES + "{name}"
        add(path, send_file, methods=["GET"], response_model=None, include_in_schema=False)
    _add_heads(app)


def _add_profiler(app: FastAPI, state: ServerState) -> None:
    if state.settings.profiler_dir:
        endpoints = ProfileEndpoints(state)
        app.add_api_route(START, endpoints.start, methods=["POST"], response_model=None)
        app.add_api_route(STOP, endpoints.stop, methods=["POST"], response_model=None)


def _add_heads(app: FastAPI) -> None:
    """Add a HEAD route for each GET route; the middleware drops the body."""
    for route in [*app.routes]:
        if isinstance(route, APIRoute) and "GET" in (route.methods or ()):
            app.add_api_route(
                route.path,
                route.endpoint,
                methods=["HEAD"],
                response_model=None,
                include_in_schema=False,
            )


async def _docs(request: Request) -> Response:
    """The API documentation, as a page."""
    page = render(request.app.openapi())
    return Response(page, headers=HEADERS, media_type="text/html; charset=utf-8")


def _direct(handler: Callable[[Request], Awaitable[Response]]) -> ASGIApp:
    """The handler without FastAPI, whose layers cost as much as the rest of a request.

    FastAPI still knows these endpoints: it documents them and answers other methods.
    """

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await handler(request)
        except ClientDisconnect as error:
            response = await _show_nothing(request, error)
        await response(scope, receive, send)

    return app


async def _show_api_error(request: Request, error: Exception) -> Response:
    known = cast(ApiError, error)
    body = error_body(known, request.url.path, request.scope.get(REQUEST_ID))
    return Response(body, known.status, headers=known.headers, media_type="application/json")


async def _show_http_exception(request: Request, error: Exception) -> Response:
    known = cast(HTTPException, error)
    place = f"{request.method} {request.url.path}"
    messages = {
        404: (_explain_missing(request), "unknown_endpoint"),
        405: (f"This endpoint does not take the method: {place}.", "method_not_allowed"),
    }
    status = known.status_code
    if status == 405 and is_known_missing(request.url.path):  # /v1/responses/{response_id} matches
        status = 404
    text, code = messages.get(status, (str(known.detail), "http_error"))
    headers = {"Allow": _methods_of(request)} if status == 405 else known.headers
    shown = ApiError(status, text, kind=INVALID, code=code, headers=headers)
    return await _show_api_error(request, shown)


def _methods_of(request: Request) -> str:
    """Methods of all routes with this path, else of all that match; Starlette names one route's."""
    fitting = [r for r in request.app.routes if r.matches(request.scope)[0] is not Match.NONE]
    own = [route for route in fitting if getattr(route, "path", "") == request.url.path]
    methods = {
        method for route in own or fitting for method in getattr(route, "methods", None) or ()
    }
    return ", ".join(sorted(methods))


def _explain_missing(request: Request) -> str:
    routes = [route for route in request.app.routes if isinstance(route, Route)]

    def serves(path: str) -> bool:
        return any(route.path_regex.match(path) for route in routes)

    return explain_missing(request.method, request.url.path, serves)


async def _show_internal(request: Request, error: Exception) -> Response:
    """Answer 500 for an internal error, which the middleware logs."""
    return await _show_api_error(request, internal())


async def _show_nothing(request: Request, error: Exception) -> Response:
    """The client disconnected while sending its body, so nobody reads this response."""
    return Response(status_code=CLIENT_CLOSED)
