# SPDX-License-Identifier: Apache-2.0
"""/v1/responses, and the endpoints for stored responses."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from rtp_llm.config.options import SWITCH_WORDS
from rtp_llm.server.endpoint.endpoint_base import EndpointBase, json_body, json_response
from rtp_llm.server.endpoint.http_answer import StreamedAnswer, WholeAnswer
from rtp_llm.server.endpoint.server_state import ServerState
from rtp_llm.server.keys.key_ring import ACCOUNT, owner_of
from rtp_llm.server.protocols.responses.background import BackgroundAnswer
from rtp_llm.server.protocols.responses.context import Context, join, wanted_by
from rtp_llm.server.protocols.responses.event_log import EventLog
from rtp_llm.server.protocols.responses.events import DeletedAnswer, ItemList
from rtp_llm.server.protocols.responses.items import unknown_item
from rtp_llm.server.protocols.responses.log_stream import LogStream, events_lost
from rtp_llm.server.protocols.responses.logprobs import TextLogprobs
from rtp_llm.server.protocols.responses.response_answer import ResponseAnswer
from rtp_llm.server.protocols.responses.response_turn import COUNT_INPUT, RESPONSE
from rtp_llm.server.protocols.responses.store import ResponseStore, StoredItem, StoredResponse
from rtp_llm.server.protocols.responses.store_writer import StoreWriter
from rtp_llm.server.protocols.responses.writer import ResponseWriter
from rtp_llm.server.types.errors import bad_request

MAX_LISTED = 100
_COUNT = "input_tokens"
_DEFAULT_LISTED = 20


class ResponsesEndpoints(EndpointBase):
    """Handlers of one server, which keeps its responses in memory."""

    def __init__(self, state: ServerState) -> None:
        super().__init__(state)
        settings = state.settings
        self._store = ResponseStore(
            settings.max_stored_responses,
            settings.max_stored_response_bytes,
            settings.stored_response_ttl,
        )

    async def create(self, http: Request) -> Response:
        """POST /v1/responses."""
        self._state.check_admission()
        body = await self._read(http)
        owner = owner_of(http.scope)
        context, history = self._context(body, owner)
        model = self._served_model(http)
        request = await self._state.preprocessing.run(RESPONSE, join(context, body), model)
        generation, response_options = self._generation(request.jobs), request.response_options
        logprobs = None
        if response_options.options.logprobs:
            logprobs = TextLogprobs(self._state.tokenizer, response_options.options)
        writer = ResponseWriter(response_options, logprobs)
        headers = self._ignored.headers(request.ignored)
        inputs = [
            StoredItem(each["id"], msgspec.json.encode(each)) for each in response_options.inputs
        ]
        store_writer = StoreWriter(self._store, owner, inputs, history)
        if writer.response.background:
            log = store_writer.event_log(writer.response) if request.stream else None
            account = http.scope[ACCOUNT]
            BackgroundAnswer(self._state, generation, writer, store_writer, account, log).start()
            if log is not None:
                return LogStream(log, generation=generation, more_headers=headers)
            begun = json_response(writer.response)
            begun.raw_headers += headers
            return begun
        answer = ResponseAnswer(writer, store_writer)
        if request.stream:
            return StreamedAnswer(self._state, generation, answer, headers)
        return WholeAnswer(self._state, generation, answer, headers)

    async def count_input(self, http: Request) -> Response:
        """POST /v1/responses/input_tokens."""
        body = await self._read(http)
        context, _ = self._context(body, owner_of(http.scope))
        joined = join(context, body)
        return self._answer(
            await self._state.preprocessing.run(COUNT_INPUT, joined, self._model(http))
        )

    async def get(self, http: Request) -> Response:
        """GET /v1/responses/{id}."""
        streamed = _truth("stream", http.query_params.get("stream"))
        after = _number("starting_after", http.query_params.get("starting_after"))
        stored = self._find(http)
        if streamed:
            return LogStream(_events_of(stored), -1 if after is None else after)
        if after is not None:
            name = "starting_after"
            raise bad_request(f"{name}: needs stream=true.", name, "invalid_value")
        return json_body(stored.current)

    async def delete(self, http: Request) -> Response:
        """DELETE /v1/responses/{id}."""
        stored = self._find(http)
        if stored.live is not None:
            await stored.live.cancel()
        self._store.remove(stored.id)
        return json_response(DeletedAnswer(id=stored.id))

    async def cancel(self, http: Request) -> Response:
        """POST /v1/responses/{id}/cancel."""
        stored = self._find(http)
        if not stored.background:
            raise bad_request(
                "Only a response that was begun with background=true can be cancelled.",
                code="invalid_value",
            )
        if stored.live is not None:
            await stored.live.cancel()
        return json_body(self._find(http).current)

    async def input_items(self, http: Request) -> Response:
        """GET /v1/responses/{id}/input_items."""
        query = http.query_params
        items = [*self._find(http).inputs]
        if _order(query.get("order")) == "desc":
            items.reverse()
        if "after" in query:
            ids = [item.id for item in items]
            if query["after"] not in ids:
                raise unknown_item(query["after"], "after")
            items = items[ids.index(query["after"]) + 1 :]
        most = _limit(query.get("limit"))
        shown = items[:most]
        answer = ItemList(
            data=[msgspec.Raw(item.json) for item in shown],
            first_id=shown[0].id if shown else None,
            last_id=shown[-1].id if shown else None,
            has_more=len(items) > most,
        )
        return json_response(answer)

    # -- parts ---------------------------------------------------------------------------------

    def _find(self, http: Request) -> StoredResponse:
        response_id = http.path_params["response_id"]
        if response_id == _COUNT:  # this is the path of another endpoint
            raise HTTPException(405)
        return self._store.find(response_id, owner_of(http.scope))

    def _context(self, body: bytes, owner: str) -> tuple[Context, Sequence[StoredItem]]:
        """The context for the preparation, and the items that precede those of the request."""
        store = self._store
        if not store.enabled and b"previous_response_id" not in body:
            return Context(), ()
        wanted = wanted_by(body)
        history: Sequence[StoredItem] = ()
        if wanted.previous_response_id is not None:
            name = "previous_response_id"
            previous = store.find(wanted.previous_response_id, owner, name)
            if previous.live is not None:
                raise bad_request(f"{name}: it is still generated.", name, "invalid_value")
            history = previous.conversation
        found = store.find_items(wanted.references(), owner)
        context = Context(
            stores=store.enabled,
            history=[msgspec.Raw(item.json) for item in history],
            items={item_id: msgspec.Raw(item) for item_id, item in found.items()},
        )
        return context, history


def _events_of(stored: StoredResponse) -> EventLog:
    """The event log of a stored response; raises ApiError 400 if it has none."""
    if stored.events is not None and stored.events.whole:
        return stored.events
    if stored.streamed:
        raise events_lost()
    raise bad_request(
        "stream: only a response that was created with background=true and stream=true can be "
        "streamed again.",
        "stream",
        "invalid_value",
    )


def _truth(name: str, given: str | None) -> bool:
    value = SWITCH_WORDS.get((given or "false").lower())
    if value is None:
        raise bad_request(f"{name}: must be true or false.", name, "invalid_value")
    return value


def _number(name: str, given: str | None) -> int | None:
    if given is None:
        return None
    if not (given.isascii() and given.isdecimal() and len(given) < 19):
        raise bad_request(f"{name}: must be a number from 0 on.", name, "invalid_value")
    return int(given)


def _order(given: str | None) -> str:
    if given not in (None, "asc", "desc"):
        raise bad_request("order: must be asc or desc.", "order", "invalid_value")
    return given or "desc"


def _limit(given: str | None) -> int:
    if given is None:
        return _DEFAULT_LISTED
    limit = _number("limit", given) or 0
    if not 1 <= limit <= MAX_LISTED:
        raise bad_request(f"limit: must be between 1 and {MAX_LISTED}.", "limit", "invalid_value")
    return limit
