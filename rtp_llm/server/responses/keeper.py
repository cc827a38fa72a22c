# SPDX-License-Identifier: Apache-2.0
"""Puts a response into the store, with all that a later request needs of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import msgspec

from rtp_llm.server.responses.event_log import EventLog
from rtp_llm.server.responses.events import ResponseObject
from rtp_llm.server.responses.store import Live, ResponseStore, StoredItem, StoredResponse

_json = msgspec.json.encode


class Keeper:
    """Of one response, whose `store` says whether it is kept.

    `inputs`: items of its request; `history`: those before them.
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
        """It was not begun after all."""
        self._store.remove(response.id)

    def event_log(self, response: ResponseObject) -> EventLog:
        """Where its events are kept while it is generated in the background."""
        return EventLog(partial(self._store.grow, response.id))

    def keep(
        self, response: ResponseObject, live: Live | None = None, events: EventLog | None = None
    ) -> bool:
        """Whether there was room for it; `live` and `events`: as of StoredResponse.

        Without room for its events it is kept without them.
        """
        if not response.store:
            return False
        stored = self._stored(response, live, events)
        if events is not None and events.whole and self._store.put(stored):
            return True
        return self._store.put(replace(stored, events=None))

    def fits(self, response: ResponseObject) -> bool:
        """Whether there would be room for it alone."""
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
