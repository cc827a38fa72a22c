"""Puts a response into the store, with all that a later request needs of it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rtp_llm.server.responses.events import ResponseObject
from rtp_llm.server.responses.store import Cancel, ResponseStore, StoredItem, StoredResponse

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

    def keep(self, response: ResponseObject, cancel: Cancel | None = None) -> bool:
        """Whether there was room for it. `cancel`: as of StoredResponse."""
        return response.store and self._store.put(self._stored(response, cancel))

    def fits(self, response: ResponseObject) -> bool:
        """Whether there would be room for it alone."""
        return self._store.fits(self._stored(response, None))

    def _stored(self, response: ResponseObject, cancel: Cancel | None) -> StoredResponse:
        return StoredResponse(
            id=response.id,
            owner=self._owner,
            body=_json(response),
            inputs=self._inputs,
            outputs=[StoredItem(item.id, _json(item)) for item in response.output],
            history=self._history,
            background=response.background,
            cancel=cancel,
        )
