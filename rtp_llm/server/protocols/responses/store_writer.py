# SPDX-License-Identifier: Apache-2.0
"""Stores a response with everything that later requests need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import msgspec

from rtp_llm.server.protocols.responses.event_log import EventLog
from rtp_llm.server.protocols.responses.events import ResponseObject
from rtp_llm.server.protocols.responses.store import Live, ResponseStore, StoredItem, StoredResponse

_json = msgspec.json.encode


class StoreWriter:
    """Stores one response, if its `store` field says so.

    `inputs`: items of its request; `history`: the items before them.
    """

    def __init__(
        self,
        store: ResponseStore,
        owner: str,
        inputs: Sequence[StoredItem],
        history: Sequence[StoredItem],
    ) -> None:
        self._store = store
        self._owner = owner
        self._inputs, self._history = inputs, history

    def forget(self, response: ResponseObject) -> None:
        """Remove the response, as it was not started after all."""
        self._store.remove(response.id)

    def event_log(self, response: ResponseObject) -> EventLog:
        """A log for the events of a background response."""
        return EventLog(partial(self._store.grow, response.id))

    def keep(
        self, response: ResponseObject, live: Live | None = None, events: EventLog | None = None
    ) -> bool:
        """Store the response; returns whether there was room. `live`, `events`: see StoredResponse.

        If there is no room for its events, it is stored without them.
        """
        if not response.store:
            return False
        stored = self._stored(response, live, events)
        if events is not None and events.whole and self._store.put(stored):
            return True
        return self._store.put(replace(stored, events=None))

    def fits(self, response: ResponseObject) -> bool:
        """Whether it would fit into an empty store."""
        return self._store.fits(self._stored(response, None, None))

    def _stored(
        self, response: ResponseObject, live: Live | None, events: EventLog | None
    ) -> StoredResponse:
        return StoredResponse(
            id=response.id,
            owner=self._owner,
            body=_json(response),
            inputs=self._inputs,
            outputs=[StoredItem(item.id, _json(item)) for item in response.output],
            history=self._history,
            background=response.background,
            live=live,
            streamed=events is not None,
            events=events,
        )
